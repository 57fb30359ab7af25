// The normalized Walsh-Hadamard transform of index keys and queries.
#pragma once

#include "dsv4rt/row_geometry.h"

namespace dsv4rt::cpu {

// values [kIndexHeadDim] <- H values * kIndexHeadDim^-0.5, H in Sylvester order (entry (i, j) is -1 to
// the number of common one bits of i and j). FP32 butterflies from stride 1 up, then one scaling.
inline void hadamard_transform(float* values) {
  constexpr float kScale = 0x1.6a09e6p-4f;  // 128^-0.5
  static_assert(kIndexHeadDim == 128);
  for (int stride = 1; stride < kIndexHeadDim; stride *= 2) {
    for (int base = 0; base < kIndexHeadDim; base += 2 * stride) {
      for (int i = base; i < base + stride; ++i) {
        const float a = values[i];
        const float b = values[i + stride];
        values[i] = a + b;
        values[i + stride] = a - b;
      }
    }
  }
  for (int i = 0; i < kIndexHeadDim; ++i) values[i] *= kScale;
}

}  // namespace dsv4rt::cpu
