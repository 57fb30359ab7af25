// Linear layers at many tokens on Hopper's wgmma: two blocks of a cluster compute 256 outputs of 192 tokens,
// each fetches half of the inputs and the copy engine writes them into both (inputs then pass L2 half as
// often). A block has two consumer warpgroups of 64 outputs each; totals over segments stay in registers.
//
// Order of accumulation: that of linear_params.h.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_consumer.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_producer.cuh"

namespace dsv4rt::cuda {

// Grid: any number of clusters of kPrefillBlocks blocks.
template <int kTokens>
__global__ __launch_bounds__(kPrefillThreads, 1) void linear_prefill_kernel(const __grid_constant__ PrefillParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  allow_dependents();
  extern __shared__ char prefill_memory[];
  const std::uint32_t base = shared_address(prefill_memory);
  PrefillMemory m;
  m.stages = (base + 1023U) & ~1023U;
  m.buffers = m.stages + p.stages * p.stage_bytes;
  m.full = m.buffers + kPrefillBlockTiles * 2 * PrefillShape<kTokens>::kBufferBytes;
  m.empty = m.full + kMaxStages * 8;

  const int rank = static_cast<int>(cluster_rank());
  const int pair = static_cast<int>(blockIdx.x) / kPrefillBlocks;
  const int pairs = static_cast<int>(gridDim.x) / kPrefillBlocks;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(m.full + i * 8, 1);
      barrier_init(m.empty + i * 8, kPrefillBlocks * kPrefillConsumerWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  cluster_arrive_relaxed();  // own barriers are ready

  if (warp >= kPrefillConsumerWarps) {
    give_registers<24>();
    if (warp == kPrefillConsumerWarps && elected_lane()) {
      const PrefillProducer<kTokens> producer{p, m, rank, pair, pairs, evict_normal_policy()};
      producer.run();
    } else {
      cluster_wait();
      wait_for_predecessors();
    }
    __syncwarp();
  } else {
    take_registers<240>();
    cluster_wait();  // the other block's are
    wait_for_predecessors();
    PrefillConsumer<kTokens> consumer{p,
                                      m,
                                      warp / kRowTileWarps,
                                      warp % kRowTileWarps,
                                      lane,
                                      rank,
                                      block_address(m.empty, static_cast<unsigned>(lane % kPrefillBlocks)),
                                      Ring{}};
    consumer.run(pair, pairs);
    __syncwarp();
  }
  cluster_arrive_relaxed();  // the other block may still write here
  cluster_wait();
#endif
}

}  // namespace dsv4rt::cuda
