// Moves of whole blocks and entries of tables: between layers' operations, never inside them.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/cache_moves/params.h"
#include "backend/cuda/kernels/common/copy_bytes.cuh"
#include "backend/cuda/kernels/common/early_reads.cuh"

namespace dsv4rt::cuda {

// A thread per delta. A step names a table cell at most once, so their order does not matter.
__global__ __launch_bounds__(kMoveThreads) void apply_deltas_kernel(const __grid_constant__ TableChunk chunk,
                                                                    const BlockTableDelta* deltas, std::int32_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kMoveThreads + threadIdx.x;
  if (i >= count) return;
  const BlockTableDelta delta = deltas[i];
  const std::int32_t table = delta.table - chunk.first;
  if (table < 0 || table >= chunk.count) return;
  chunk.tables[table].block_table[delta.slot * chunk.tables[table].stride + delta.index] = delta.block;
  publish_to_early_readers();
}

// Grid: (shares of a block's bytes, tables of the chunk). A thread owns the same bytes of every block of its
// pool and makes all copies there in order: a copy may read what an earlier one wrote, without a barrier.
__global__ __launch_bounds__(kMoveThreads) void copy_blocks_kernel(const __grid_constant__ TableChunk chunk,
                                                                   const BlockCopy* copies, std::int32_t count) {
  const CacheTable& table = chunk.tables[blockIdx.y];
  const std::int32_t id = chunk.first + static_cast<std::int32_t>(blockIdx.y);
  const std::int64_t thread = std::int64_t{blockIdx.x} * kMoveThreads + threadIdx.x;
  const std::int64_t threads = std::int64_t{gridDim.x} * kMoveThreads;
  for (std::int32_t i = 0; i < count; ++i) {
    const BlockCopy copy = copies[i];
    if (copy.table != id || copy.source == copy.target) continue;
    copy_bytes(table.blocks + copy.target * table.block_bytes, table.blocks + copy.source * table.block_bytes,
               table.block_bytes, thread, threads);
  }
  publish_to_early_readers();
}

}  // namespace dsv4rt::cuda
