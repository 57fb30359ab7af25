// Kernels of few tokens go through their work once before their turn, with zeros for what the kernels in front write,
// so that instructions are there when they count: other kernels' have taken their place since the last time.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"

namespace dsv4rt::cuda {

// With more tokens blocks begin too late: a rehearsal would delay them.
inline constexpr std::int64_t kRehearsalTokens = 8;

// work(false) is the rehearsal, work(true) the turn, behind the kernels in front.
template <class Work>
__device__ inline void rehearse_and_run(bool rehearses, const Work& work) {
#pragma unroll 1
  for (int round = rehearses ? 0 : 1; round < 2; ++round) {
    if (round == 1) wait_for_predecessors();
    work(round == 1);
  }
}

// Keeps the compiler from leaving out of a rehearsal what is stored in its turn alone.
__device__ inline void hold_result(uint2& values) {
  asm volatile("" : "+r"(values.x), "+r"(values.y));
}
__device__ inline void hold_result(uint4& values) {
  asm volatile("" : "+r"(values.x), "+r"(values.y), "+r"(values.z), "+r"(values.w));
}

}  // namespace dsv4rt::cuda
