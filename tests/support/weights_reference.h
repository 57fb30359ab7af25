// Weights of attention in double precision, as backend/attend_weights.h defines them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>
#include <vector>

#include "base/bfloat16.h"

namespace dsv4rt::test {

inline double round_weight(double value) {
  return static_cast<double>(round_to_bf16(static_cast<float>(value)));
}

struct WeightsReference {
  // The first `window` rows are the window's. by_power: relative to the multiple of ln 2 that is nearest to the
  // greatest score of all rows.
  WeightsReference(const std::vector<double>& scores, std::size_t window, bool by_power) {
    const double largest = *std::max_element(scores.begin(), scores.end());
    if (by_power) {
      reference = std::nearbyint(largest / std::numbers::ln2) * std::numbers::ln2;
    } else {
      reference = *std::max_element(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(window));
      shifts = shifts_of(largest);
    }
  }

  [[nodiscard]] double weight(double score) const { return std::exp2(exponent(score) - 64 * shifts); }
  // Rounded before it is scaled.
  [[nodiscard]] double rounded(double score) const {
    const double own = shifts_of(score);
    return std::ldexp(round_weight(std::exp2(exponent(score) - 64 * own)), static_cast<int>(64 * (own - shifts)));
  }

  double reference = 0;
  double shifts = 0;

 private:
  [[nodiscard]] double exponent(double score) const { return (score - reference) * std::numbers::log2e; }
  [[nodiscard]] double shifts_of(double score) const { return std::max(0.0, std::ceil((exponent(score) - 60) / 64)); }
};

}  // namespace dsv4rt::test
