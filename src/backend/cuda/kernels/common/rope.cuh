// The rotary embedding inside kernels.
#pragma once

#include <cstdint>

#include "backend/ops.h"
#include "base/bfloat16.h"
#include "base/sine_cosine.h"

namespace dsv4rt::cuda {

inline constexpr int kRotatedPairs = kRopeDim / 2;

struct Rotation {
  float cosine = 1.0F;
  float sine = 0.0F;
};

// Of the interleaved pair `pair` in [0, kRotatedPairs); rope.inverse_frequency is not null.
__device__ inline Rotation rotation_of(const RopeParams& rope, std::int32_t position, int pair) {
  const float angle = __fmul_rn(static_cast<float>(position), rope.inverse_frequency[pair]);
  const SineCosine of_angle = sine_cosine(angle);
  return {.cosine = of_angle.cosine, .sine = rope.inverse ? -of_angle.sine : of_angle.sine};
}

// Products and sums stay unfused, as on the CPU; results are rounded to BF16.
__device__ inline void rotate_pair(const Rotation& rotation, float& even, float& odd) {
  const float x = even;
  const float y = odd;
  even = round_to_bf16(__fsub_rn(__fmul_rn(x, rotation.cosine), __fmul_rn(y, rotation.sine)));
  odd = round_to_bf16(__fadd_rn(__fmul_rn(x, rotation.sine), __fmul_rn(y, rotation.cosine)));
}

// Rotates what thread `quad` of a row holds: values 4 * quad .. 4 * quad + 3 of `dim`, of which the last
// kRopeDim rotate. Nothing happens without frequencies.
__device__ inline void rotate_quad(const RopeParams& rope, std::int32_t position, int dim, int quad, float (&v)[4]) {
  const int first = 4 * quad - (dim - kRopeDim);
  if (first < 0 || rope.inverse_frequency == nullptr) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) rotate_pair(rotation_of(rope, position, first / 2 + i), v[2 * i], v[2 * i + 1]);
}

}  // namespace dsv4rt::cuda
