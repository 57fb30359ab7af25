// How benchmarks compare outputs of the same tokens from steps of different shapes.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "base/bfloat16.h"

namespace dsv4rt {

// Most relative L2 distance of outputs without determinism (LinearPrecision::kNvfp4). A single token of random
// weights may attend to other rows of nearly the same index score: its output is about the mean of 640 random rows, so
// that three others move it by sqrt(2 * 3 / 640), 10 %, and outputs of wrong tokens are sqrt(2) apart.
inline constexpr double kTokenTolerance = 0.5;

// 0 for equal bytes, infinity where the distance is not a number or sizes differ.
inline double relative_distance(std::span<const bf16> a, std::span<const bf16> b) {
  if (std::equal(a.begin(), a.end(), b.begin(), b.end(), [](bf16 x, bf16 y) { return x.bits == y.bits; })) return 0;
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = double{to_float(a[i])} - double{to_float(b[i])};
    error += difference * difference;
    norm += double{to_float(a[i])} * double{to_float(a[i])};
  }
  const double distance = std::sqrt(error / norm);
  return std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
}

// Equal bytes, or without determinism at most `tolerance` apart.
inline bool agree(double distance, bool deterministic, double tolerance) {
  return deterministic ? distance == 0 : distance <= tolerance;
}

}  // namespace dsv4rt
