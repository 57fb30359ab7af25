#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/round_input.h"
#include "backend/cuda/kernels/linear/round_values.cuh"

namespace dsv4rt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerGroup = kThreads / kRoundingLanes;

__global__ __launch_bounds__(kThreads) void round_input_kernel(const RoundInputParams p) {
  allow_dependents();
  wait_for_predecessors();
  const std::int64_t item = (std::int64_t{blockIdx.x} * kThreads + threadIdx.x) / kRoundingLanes;
  if (item >= std::int64_t{p.tokens} * p.blocks) return;  // whole half-warps
  const int lane = static_cast<int>(threadIdx.x) % kRoundingLanes;
  const std::int64_t token = item / p.blocks;
  const std::int64_t block = item % p.blocks;
  const std::int64_t first = block * kScaleBlockInputs + lane * 8;
  const unsigned members = (threadIdx.x & 16U) != 0 ? 0xffff0000U : 0x0000ffffU;
  *reinterpret_cast<uint4*>(p.rounded + (token * p.blocks + block) * kScaleBlockInputs + lane * 8) =
      round_block(*reinterpret_cast<const uint4*>(p.x + token * p.x_stride + first), members);
}

}  // namespace

Status round_input(const RoundInputParams& p, cudaStream_t stream) {
  const std::int64_t items = std::int64_t{p.tokens} * p.blocks;
  const auto grid = static_cast<unsigned>((items + kBlocksPerGroup - 1) / kBlocksPerGroup);
  return launch_pdl(round_input_kernel, {.grid = dim3(grid), .threads = kThreads}, stream, p);
}

}  // namespace dsv4rt::cuda
