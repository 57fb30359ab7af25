// Attention of 64 query heads of one token on Hopper: warpgroup_plan.cuh says how.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/warpgroup_heads.cuh"
#include "backend/cuda/kernels/attend/warpgroup_rows.cuh"

namespace dsv4rt::cuda {

inline constexpr int kWarpgroupThreads = kConsumers + kProducers;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}

// Queries of the block's heads to cells, zeros for missing heads. The caller waits for the copies.
template <class Shared>
__device__ inline void copy_queries(const AttendParams& p, std::int64_t token, int first_head, Shared& shared) {
  constexpr int kUnits = kHeadDim / kUnitValues;
  const int heads = min(kTileHeads, p.heads - first_head);
  const auto* source = reinterpret_cast<const uint4*>(p.q + (token * p.heads + first_head) * kHeadDim);
  const std::uint32_t q = shared_address(shared.q);
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x); i < kTileHeads * kUnits; i += kConsumers) {
    const int head = i / kUnits;
    const int unit = i % kUnits;
    const bool present = head < heads;
    copy_unit(q + unit / 8 * kCellBytes + cell_offset(head, unit % 8), source + (present ? i : 0), present);
  }
}

// Places of window rows and of the first kPlacedRows compressed rows. Selected rows are read before the token's
// place is known. The rows start on their way from device memory.
template <int kBlocks>
__device__ inline TokenRows place_rows(const AttendParams& p, std::int64_t token, int rank,
                                       WarpgroupShared<kBlocks>& shared) {
  constexpr int kPerThread = (kPlacedRows + kWarpgroupThreads - 1) / kWarpgroupThreads;
  const int thread = static_cast<int>(threadIdx.x);
  std::int32_t row[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    const int index = thread + i * kWarpgroupThreads;
    row[i] = index;
    if (p.selected != nullptr && index < p.selected_stride) {
      row[i] = __ldg(p.selected + token * p.selected_stride + index);
    }
  }
  const TokenRows rows = token_rows(p, token);
  const int compressed = min(rows.count - rows.window, kPlacedRows);
  if (thread < rows.window) {
    const std::int32_t position = rows.place.position - rows.window + 1 + thread;
    const RowPlace place = position >= rows.place.start
                               ? kStagedRow | static_cast<RowPlace>(rows.place.token_of(position))
                               : static_cast<RowPlace>(position % p.ring.shape.rows);
    shared.place[thread] = place;
    if (thread % kBlocks == rank) prefetch_row(window_source(p, rows.place.slot, place));
  }
  RowPlace place[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kWarpgroupThreads < compressed) place[i] = place_of(p, rows.place.slot, row[i]);
  }
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (thread + i * kWarpgroupThreads < compressed) {
      shared.place[kPlacedWindow + thread + i * kWarpgroupThreads] = place[i];
      if (thread % kBlocks == rank) prefetch_row(compressed_source(p, place[i]));
    }
  }
  return rows;
}

#endif

// Grid: x = tokens * kBlocks in clusters of kBlocks, y = groups of 64 heads. Tokens with more rows than the
// cluster's shares hold are left to another kernel.
template <int kBlocks>
__global__ void __launch_bounds__(kWarpgroupThreads, 1)
    attend_warpgroup_kernel(const __grid_constant__ AttendParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte warpgroup_shared[];
  auto& shared = *reinterpret_cast<WarpgroupShared<kBlocks>*>(warpgroup_shared);
  const std::int64_t token = static_cast<int>(blockIdx.x) / kBlocks;
  const int rank = static_cast<int>(blockIdx.x) % kBlocks;
  const int first_head = static_cast<int>(blockIdx.y) * kTileHeads;
  const bool consumes = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0) < kConsumers / 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < 2; ++slot) {
      barrier_init(&shared.full[slot], kProducers / 32);
      barrier_init(&shared.empty[slot], kConsumers / 32);
      barrier_init(&shared.piece_full[slot], kProducers / 32);
      barrier_init(&shared.piece_empty[slot], kConsumers / 32);
    }
    barrier_init(&shared.max_ready, kBlocks * kTileHeads / 32);
    barrier_init(&shared.weights_ready, kBlocks * kConsumers / 32);
    barrier_init(&shared.weights_here, 1);
    barrier_init_fence();
  }
  if constexpr (kBlocks > 1) cluster_arrive();
  if (consumes) copy_queries(p, token, first_head, shared);
  const TokenRows rows = place_rows<kBlocks>(p, token, rank, shared);
  __syncthreads();
  if constexpr (kBlocks > 1) cluster_wait();
  if (rows.count == 0 || rows.count > kBlocks * kShareRows) {
    wait_for_copies();
    if (rows.count != 0) return;
    constexpr int kUnits = Share<kBlocks>::kSliceValues / kUnitValues;
    for (int i = static_cast<int>(threadIdx.x); i < min(kTileHeads, p.heads - first_head) * kUnits;
         i += kWarpgroupThreads) {
      bf16* head = p.o + (token * p.heads + first_head + i / kUnits) * kHeadDim;
      reinterpret_cast<uint4*>(head + rank * Share<kBlocks>::kSliceValues)[i % kUnits] = uint4{};
    }
    return;
  }
  const Share<kBlocks> share(rows.count, rank);
  if (consumes) {
    take_registers<184>();
    HeadConsumer<kBlocks>(p, rows, share, token, first_head, shared).run();
  } else {
    give_registers<72>();
    RowProducer<kBlocks>(p, rows, share, shared).run();
    if (threadIdx.x < kConsumers + kRotatedPairs) {
      if (p.output_rope.inverse_frequency != nullptr) {
        const int pair = static_cast<int>(threadIdx.x) - kConsumers;
        shared.rotation[pair] = rotation_of(p.output_rope, rows.place.position, pair);
      }
      named_arrive(kOutputBarrier, kConsumers + 32);
    }
  }
  // Nobody leaves while others read its weights.
  if constexpr (kBlocks > 1) {
    cluster_arrive();
    cluster_wait();
  }
#endif
}

}  // namespace dsv4rt::cuda
