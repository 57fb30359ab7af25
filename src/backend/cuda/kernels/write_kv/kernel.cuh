// The row kernel: every thread block does a piece of one part.
//
// Parts write different memory and read nothing that another part of the same launch writes, with one exception
// that the host rules out: state rings are written beside their readers only when the step keeps every row that
// is read (ring_keeps_needed_rows).
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/compress/cluster_pool.cuh"
#include "backend/cuda/kernels/compress/register_pool.cuh"
#include "backend/cuda/kernels/compress/state_rows.cuh"
#include "backend/cuda/kernels/index_query/index_query_heads.cuh"
#include "backend/cuda/kernels/query/query_heads.cuh"
#include "backend/cuda/kernels/swa/swa_row.cuh"
#include "backend/cuda/kernels/write_kv/params.h"

namespace dsv4rt::cuda {

static_assert(kRowThreads == kBlockThreads && kRowThreads == kHeadDim / 2);

// What a block keeps in shared memory; the parts never meet in one.
template <Pooling kPooling>
union RowShared {
  QueryHeadsShared query[kRowWarps];
  WindowRowShared window[kRowThreads / kRowQuads];
};
template <>
union RowShared<Pooling::kInRegisters> {
  QueryHeadsShared query[kRowWarps];
  WindowRowShared window[kRowThreads / kRowQuads];
  RegisterPoolShared<kHeadDim> register_pool;
  RegisterPoolShared<kIndexHeadDim> index_keys[kBlockIndexKeys];
};
template <>
union RowShared<Pooling::kInCluster> {
  QueryHeadsShared query[kRowWarps];
  WindowRowShared window[kRowThreads / kRowQuads];
  ClusterPoolShared cluster_pool;
};

// Heads are handed out to warps in groups, token by token.
struct HeadGroup {
  std::int64_t token;
  int first_head;
};
__device__ inline HeadGroup head_group(std::int64_t warp, int heads, int heads_of_warp) {
  const int groups = (heads + heads_of_warp - 1) / heads_of_warp;
  const std::int64_t token = warp / groups;
  return {.token = token, .first_head = static_cast<int>(warp - token * groups) * heads_of_warp};
}

// Blocks of queries and of index queries take turns while there are both: memory limits the ones, instructions the
// others, and a multiprocessor then has some of each.
struct QueryTurn {
  bool of_index;
  std::uint32_t number;  // among the blocks of its part

  __device__ QueryTurn(const RowLaunch& p, std::uint32_t block) {
    const std::uint32_t queries = p.end[kQuery] - p.end[kState];
    const std::uint32_t index_queries = p.end[kIndexQuery] - p.end[kQuery];
    const std::uint32_t turns = min(queries, index_queries);
    of_index = block < 2 * turns ? block % 2 != 0 : index_queries > queries;
    number = block < 2 * turns ? block / 2 : block - turns;
  }
};

// The rows or keys that tokens first .. first + count - 1 complete.
template <int kDim>
__device__ inline void compress_tokens(const CompressParams& p, std::int64_t first, int count,
                                       const RowGroup<kDim / 2>& group, RegisterPoolShared<kDim>& shared) {
  for (unsigned left = completing_tokens(p, first, count); left != 0; left &= left - 1) {
    compress_in_registers(p, first + __ffs(static_cast<int>(left)) - 1, group, shared);
  }
}

template <Pooling kPooling>
__device__ inline void compress_part(const RowLaunch& p, std::uint32_t block, RowShared<kPooling>& shared) {
  if constexpr (kPooling == Pooling::kInCluster) {
    const std::uint32_t cluster = block / static_cast<std::uint32_t>(p.compress.input.dim / kClusterChannels);
    const std::int64_t first = std::int64_t{cluster} * p.compress_tokens;
    const unsigned tokens = completing_tokens(p.compress, first, p.compress_tokens);
    if (tokens != 0) ClusterPool(p.compress, shared.cluster_pool).run(first, tokens);
  } else if constexpr (kPooling == Pooling::kInRegisters) {
    compress_tokens(p.compress, std::int64_t{block} * p.compress_tokens, p.compress_tokens,
                    RowGroup<kRowThreads>::own(), shared.register_pool);
  }
}

template <Pooling kPooling>
__device__ inline void index_compress_part(const RowLaunch& p, std::uint32_t block, RowShared<kPooling>& shared) {
  if constexpr (kPooling == Pooling::kInRegisters) {
    const auto group = RowGroup<kIndexHeadDim / 2>::own();
    const std::int64_t first = (std::int64_t{block} * kBlockIndexKeys + group.index) * p.index_compress_tokens;
    compress_tokens(p.index_compress, first, p.index_compress_tokens, group, shared.index_keys[group.index]);
  }
}

// Blocks of a multiprocessor that registers must allow: without pooling more of them make long chunks slower, and many
// rows lie in registers.
template <Pooling kPooling>
inline constexpr int kMinRowBlocks = 3;
template <>
inline constexpr int kMinRowBlocks<Pooling::kInRegisters> = 4;
template <>
inline constexpr int kMinRowBlocks<Pooling::kInCluster> = 2;

template <Pooling kPooling>
__global__ __launch_bounds__(kRowThreads,
                             kMinRowBlocks<kPooling>) void row_kernel(const __grid_constant__ RowLaunch p) {
  extern __shared__ float4 shared_memory[];
  auto& shared = *reinterpret_cast<RowShared<kPooling>*>(shared_memory);
  allow_dependents();
  const std::uint32_t block = blockIdx.x;
  // Broadcast, so that the compiler sees that the warp stays together.
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0);
  if (block < p.end[kCompress]) {
    compress_part<kPooling>(p, block, shared);
  } else if (block < p.end[kIndexCompress]) {
    index_compress_part<kPooling>(p, block - p.end[kCompress], shared);
  } else if (block < p.end[kWindow]) {
    const auto group = RowGroup<kRowQuads>::own();
    const std::int64_t first =
        (std::int64_t{block - p.end[kIndexCompress]} * kBlockWindowRows + group.index) * p.window_tokens;
    const std::int64_t tokens = p.window.step.counts.tokens;
    if (first < tokens) {
      WindowRowShared& own = shared.window[group.index];
      if (kPooling == Pooling::kNone && p.window_tokens > 1) {
        write_window_rows(p.window, p.swa_ring, first, min(first + p.window_tokens, tokens), group, own);
      } else {
        write_window_row(p.window, p.swa_ring, first, group, own);
      }
    }
  } else if (block < p.end[kState]) {
    const std::int64_t first = std::int64_t{block - p.end[kWindow]} * p.state_tokens;
    if (p.stores_state) store_state_rows(p.compress, first, p.state_tokens);
    if (p.stores_index_state) store_state_rows(p.index_compress, first, p.state_tokens);
  } else if (block < p.end[kIndexQuery]) {
    const QueryTurn turn(p, block - p.end[kState]);
    const std::int64_t first_warp = std::int64_t{turn.number} * kRowWarps;
    if (turn.of_index) {
      const HeadGroup group = head_group(first_warp + warp, p.index_query.heads, p.warp_index_heads);
      if (group.token < p.index_query.step.counts.tokens) {
        index_query_heads(p.index_query, group.token, group.first_head, p.warp_index_heads);
      }
    } else {
      const HeadGroup group = head_group(first_warp + warp, p.query.heads, kWarpQueryHeads);
      if (group.token < p.query.step.counts.tokens) {
        query_heads(p.query, group.token, group.first_head, shared.query[warp]);
      }
    }
  }
  // Blocks that had nothing to do make room at once, but the grid's end must imply its predecessors' end.
  if (block == 0) wait_for_predecessors();
}

}  // namespace dsv4rt::cuda
