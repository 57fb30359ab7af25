#include "backend/cuda/kernels/attend/block_launch.h"
#include "backend/cuda/kernels/attend/block_pass_launch.cuh"
#include "backend/cuda/kernels/attend/even_pass.cuh"

namespace dsv4rt::cuda {

Status launch_even_blocks(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                          std::byte* memory, std::byte* zeros, cudaStream_t stream) {
  const EvenShares& shares = *plan.even;
  auto* sums = reinterpret_cast<float4*>(memory);
  const EvenPass pass{.tokens = block_pass(plan),
                      .shares = shares,
                      .sums = sums,
                      .states = reinterpret_cast<HandedState*>(sums + std::int64_t{shares.blocks} * kSplitQuads),
                      .handed = reinterpret_cast<std::uint32_t*>(zeros)};
  return launch_block_pass(device, params, pass, static_cast<unsigned>(shares.blocks), stream);
}

}  // namespace dsv4rt::cuda
