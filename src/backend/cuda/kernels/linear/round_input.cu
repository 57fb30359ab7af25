#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/round_input.h"
#include "backend/cuda/kernels/linear/round_values.cuh"

namespace dsv4rt::cuda {
namespace {

__global__ __launch_bounds__(kRoundingThreads) void round_input_kernel(const RoundInputParams p) {
  allow_dependents();
  wait_for_predecessors();
  const auto [item, lane, members] = RoundingPlace{};
  if (item >= std::int64_t{p.tokens} * p.blocks) return;  // whole half-warps
  const std::int64_t token = item / p.blocks;
  const std::int64_t block = item % p.blocks;
  const std::int64_t first = block * kScaleBlockInputs + lane * 8;
  *reinterpret_cast<uint4*>(p.rounded + (token * p.blocks + block) * kScaleBlockInputs + lane * 8) =
      round_block(*reinterpret_cast<const uint4*>(p.x + token * p.x_stride + first), members);
}

}  // namespace

Status round_input(const RoundInputParams& p, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const auto grid = static_cast<unsigned>((items + kRoundingBlocks - 1) / kRoundingBlocks);
  return launch_pdl(round_input_kernel, {.grid = dim3(grid), .threads = kRoundingThreads}, stream, p);
}

}  // namespace dsv4rt::cuda
