// Parts of the model in double precision, for tests that compute what an operation should give.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "base/bfloat16.h"

namespace dsv4rt::test {

// One channel of a compressed row: sum(exp(score) * value) / sum(exp(score)).
class ReferencePool {
 public:
  void add(double score, double value) {
    const double weight = std::exp(score);
    weights_ += weight;
    sum_ += weight * value;
  }
  [[nodiscard]] double value() const { return sum_ / weights_; }

 private:
  double weights_ = 0;
  double sum_ = 0;
};

// Rotates the interleaved pairs (2i, 2i + 1) of `tail` by angle(i).
template <class Angle>
void reference_rotate(std::span<double> tail, const Angle& angle) {
  for (std::size_t i = 0; i < tail.size() / 2; ++i) {
    const double c = std::cos(angle(i));
    const double s = std::sin(angle(i));
    const double even = tail[2 * i];
    const double odd = tail[2 * i + 1];
    tail[2 * i] = even * c - odd * s;
    tail[2 * i + 1] = even * s + odd * c;
  }
}

// The score of a decoded index key: sum over heads of weight * relu(q . key). q: [heads, size of key], weight: [heads].
inline double reference_index_score(std::span<const float> key, std::int32_t heads, const bf16* q, const bf16* weight,
                                    float head_scale) {
  double sum = 0;
  for (std::int32_t h = 0; h < heads; ++h, q += key.size()) {
    double dot = 0;
    for (std::size_t i = 0; i < key.size(); ++i) {
      dot += static_cast<double>(to_float(q[i])) * static_cast<double>(key[i]);
    }
    sum += std::max(dot, 0.0) * static_cast<double>(to_float(weight[h]) * head_scale);
  }
  return sum;
}

}  // namespace dsv4rt::test
