// Sums of a split added to those of the splits before it in its run (dense_splits.h).
//
// The sums of both are relative to powers of two, and what is left is relative to the run's own: that of its first
// split until one comes whose power lies so far above that its sums could leave FP32's range, and then that one's. So a
// block that has left its run's sums in memory adds to them without a look, but then.
//
// Everything is in operations that flush subnormals, since additions in global memory do.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/softmax_math.cuh"

namespace dsv4rt::cuda {

// Powers up to here above the run's do not become its own. Weights are at most 2^60 relative to their split's power
// (softmax_math.cuh): relative to the run's, those of 2^11 rows, a run's at 1M tokens, times values of 2^44 add up to
// 2^127, within FP32. With 4 in place of 12 random queries and rows bring so many changes that 32 tokens of 8,320 rows
// take 11 % longer.
inline constexpr float kMostAboveRun = 12.0f;

__device__ inline float add_flushed(float a, float b) {
  float sum;
  asm("add.rn.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(a), "f"(b));
  return sum;
}
__device__ inline float multiply_flushed(float a, float b) {
  float product;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}

// 2^exponent for integers up to kMostAboveRun; zero below the normal range.
__device__ inline float power_of_two(float exponent) {
  return exponent >= -126.0f ? __int_as_float((127 + static_cast<int>(exponent)) << 23) : 0.0f;
}

// A head's powers: how its run and its next split come together.
struct SplitMerge {
  float power;  // the run's, then
  float kept;   // factor of the run's sums: one, or the power has changed
  float added;  // factor of the split's

  [[nodiscard]] __device__ float operator()(float run, float split) const {
    return add_flushed(multiply_flushed(run, kept), multiply_flushed(split, added));
  }
};
__device__ inline SplitMerge split_merge(float run, float split) {
  const float above = split - run;
  if (above > kMostAboveRun) return {.power = split, .kept = power_of_two(-above), .added = 1.0f};
  return {.power = run, .kept = 1.0f, .added = power_of_two(above)};
}

// A load that stays where it is, of what other multiprocessors, or additions like the one below, have left.
__device__ inline float4 load_global_quad(const float4* from) {
  float4 quad;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(quad.x), "=f"(quad.y), "=f"(quad.z), "=f"(quad.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return quad;
}
// As add_flushed(), where the level-2 cache has them.
__device__ inline void add_to_global(float4* to, float4 quad) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"l"(__cvta_generic_to_global(to)),
               "f"(quad.x), "f"(quad.y), "f"(quad.z), "f"(quad.w)
               : "memory");
}

}  // namespace dsv4rt::cuda
