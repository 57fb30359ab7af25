#include <algorithm>
#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/shared/round_input.h"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_plan.h"
#include "base/arithmetic.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kMostItems = 4;  // of a thread, loaded together

__global__ __launch_bounds__(kRoundingThreads) void round_input_kernel(const RoundInputParams p) {
  allow_dependents();
  wait_for_predecessors();
  const auto [first, lane, members] = RoundingPlace{};
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const std::int64_t step = std::int64_t{gridDim.x} * kRoundingBlocks;
  uint4 values[kMostItems];
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const std::int64_t item = first + i * step;
    if (item >= items) break;
    const std::int64_t input = item % p.blocks * kScaleBlockInputs + lane * 8;
    values[i] = *reinterpret_cast<const uint4*>(p.x + item / p.blocks * p.x_stride + input);
  }
#pragma unroll
  for (int i = 0; i < kMostItems; ++i) {
    const std::int64_t item = first + i * step;
    if (item >= items) break;  // whole half-warps
    *reinterpret_cast<uint4*>(p.rounded + item * kScaleBlockInputs + lane * 8) = round_block(values[i], members);
  }
}

}  // namespace

Status round_input(const RoundInputParams& p, cudaStream_t stream) {
  const std::int64_t blocks = ceil_div<std::int64_t>(std::int64_t{p.tokens} * p.blocks, kRoundingBlocks);
  std::int64_t grid = blocks;
  if (p.tokens <= kMostSplitKTokens) {
    // No more blocks than multiprocessors, if they can do it: then all have a place at once, and the split-K kernel
    // behind this one can begin to fetch weights.
    constexpr std::int64_t kMultiprocessors = 132;
    grid = std::max(std::min(blocks, kMultiprocessors), ceil_div<std::int64_t>(blocks, kMostItems));
  }
  return launch_pdl(round_input_kernel, {.grid = dim3(static_cast<unsigned>(grid)), .threads = kRoundingThreads},
                    stream, p);
}

}  // namespace dsv4rt::cuda
