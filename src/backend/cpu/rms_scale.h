// Sums of squares in one fixed order, and the scale of an RMS norm.
#pragma once

#include <cmath>

namespace dsv4rt::cpu {

// Sum over i of term(i) for i in [0, count): 16 partial sums by i % 16, each in ascending order, then a
// binary tree. The order depends on `count` only.
template <class Term>
float sum_in_lanes(int count, const Term& term) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// 1 / sqrt(mean(values^2) + eps), correctly rounded square root and division.
inline float rms_scale(const float* values, int count, float eps) {
  const float sum = sum_in_lanes(count, [values](int i) { return values[i] * values[i]; });
  return 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
}

}  // namespace dsv4rt::cpu
