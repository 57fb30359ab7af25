// How benchmarks compare outputs of the same tokens from steps of different shapes.
#pragma once

#include <algorithm>
#include <span>

#include "base/bfloat16.h"

namespace dsv4rt {

// Equal bytes; without determinism (EngineOptions::deterministic) a relative L2 distance of at most one half. These may
// be single tokens of random weights, whose indexer then may take other rows of nearly the same score: an output is
// about the mean of 640 random rows, so that three others move it by sqrt(2 * 3 / 640), 10 %. Outputs of wrong tokens
// are sqrt(2) apart.
inline bool agree(std::span<const bf16> a, std::span<const bf16> b, bool deterministic) {
  if (deterministic) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](bf16 x, bf16 y) { return x.bits == y.bits; });
  }
  if (a.size() != b.size()) return false;
  constexpr double kTolerance = 0.5;
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{to_float(a[i])} - double{to_float(b[i])};
    error += difference * difference;
    norm += double{to_float(a[i])} * double{to_float(a[i])};
  }
  return error <= kTolerance * kTolerance * norm;  // NaN does not agree
}

}  // namespace dsv4rt
