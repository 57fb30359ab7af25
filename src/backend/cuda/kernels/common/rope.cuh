// The rotary embedding inside kernels.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/ops.h"
#include "base/sine_cosine.h"

namespace dsv4rt::cuda {

inline constexpr int kRotatedPairs = kRopeDim / 2;

struct Rotation {
  float cosine = 1.0F;
  float sine = 0.0F;
};

// The rotation of an interleaved pair, by its inverse frequency.
__device__ inline Rotation rotation_of(float inverse_frequency, bool inverse, std::int32_t position) {
  const float angle = __fmul_rn(static_cast<float>(position), inverse_frequency);
  const SineCosine of_angle = sine_cosine(angle);
  return {.cosine = of_angle.cosine, .sine = inverse ? -of_angle.sine : of_angle.sine};
}
// And by its number in [0, kRotatedPairs); rope.inverse_frequency is not null.
__device__ inline Rotation rotation_of(const RopeParams& rope, std::int32_t position, int pair) {
  return rotation_of(rope.inverse_frequency[pair], rope.inverse, position);
}

// Products and sums stay unfused, as on the CPU; results are rounded to BF16.
__device__ inline void rotate_pair(const Rotation& rotation, float& even, float& odd) {
  const std::uint32_t rotated = round_pair(__fsub_rn(__fmul_rn(even, rotation.cosine), __fmul_rn(odd, rotation.sine)),
                                           __fadd_rn(__fmul_rn(even, rotation.sine), __fmul_rn(odd, rotation.cosine)));
  even = low_value(rotated);
  odd = high_value(rotated);
}

}  // namespace dsv4rt::cuda
