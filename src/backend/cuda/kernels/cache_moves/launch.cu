#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/cache_moves/copy_regions.h"
#include "backend/cuda/kernels/cache_moves/kernel.cuh"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/move_checks.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

Status launch_step_moves(const StepView& step, const TableChunk& chunk, cudaStream_t stream) {
  const std::int32_t deltas = step.counts.table_deltas;
  if (deltas > 0) {
    const auto grid = static_cast<unsigned>((std::int64_t{deltas} + kMoveThreads - 1) / kMoveThreads);
    apply_deltas_kernel<<<grid, kMoveThreads, 0, stream>>>(chunk, step.table_deltas, deltas);
    DSV4RT_CUDA_TRY(cudaGetLastError());
  }
  const std::int32_t copies = step.counts.block_copies;
  if (copies > 0) {
    std::int64_t largest = 0;
    for (std::int32_t i = 0; i < chunk.count; ++i) largest = std::max(largest, chunk.tables[i].block_bytes);
    const dim3 grid(move_shares(largest, 1), static_cast<unsigned>(chunk.count));
    copy_blocks_kernel<<<grid, kMoveThreads, 0, stream>>>(chunk, step.block_copies, copies);
    DSV4RT_CUDA_TRY(cudaGetLastError());
  }
  return {};
}

}  // namespace

// The entries lie in device memory: one that names an unknown table is passed over by the kernels, not
// refused here. The host's counts become part of a captured launch; a step with other counts needs its
// own launch of begin_step, which therefore stays outside captured graphs.
Status CudaOps::begin_step(const StepView& step, std::span<const CacheTable> tables) {
  const bool entries = step.counts.table_deltas > 0 || step.counts.block_copies > 0;
  DSV4RT_RETURN_IF_ERROR(require(!entries || !tables.empty(), "begin_step", "tables", 0,
                                 "1 or more for a step with table deltas or block copies"));
  for (std::size_t first = 0; entries && first < tables.size(); first += kTablesPerLaunch) {
    TableChunk chunk;
    chunk.first = static_cast<std::int32_t>(first);
    chunk.count = static_cast<std::int32_t>(std::min<std::size_t>(kTablesPerLaunch, tables.size() - first));
    std::copy_n(tables.begin() + static_cast<std::ptrdiff_t>(first), chunk.count, chunk.tables);
    DSV4RT_RETURN_IF_ERROR(launch_step_moves(step, chunk, stream_));
  }
  return {};
}

Status CudaOps::copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                          std::span<const CacheRings> rings) {
  DSV4RT_RETURN_IF_ERROR(require(source >= 0, "copy_slot", "source", source, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(target >= 0, "copy_slot", "target", target, "0 or more"));
  if (source == target) return {};
  // Table rows and rings apart: a launch's share count follows its largest region.
  RegionCopier copier(stream_);
  for (const CacheTable& table : tables) {
    const auto row_bytes = table.stride * static_cast<std::int64_t>(sizeof(std::int32_t));
    auto* const rows = reinterpret_cast<std::byte*>(table.block_table);
    DSV4RT_RETURN_IF_ERROR(copier.add(rows + target * row_bytes, rows + source * row_bytes, row_bytes));
  }
  DSV4RT_RETURN_IF_ERROR(copier.flush());
  for (const CacheRings& ring : rings) {
    DSV4RT_RETURN_IF_ERROR(
        copier.add(ring.base + target * ring.slot_bytes, ring.base + source * ring.slot_bytes, ring.slot_bytes));
  }
  return copier.flush();
}

Status CudaOps::write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                                 std::span<const CacheTable> tables) {
  DSV4RT_RETURN_IF_ERROR(check_table_rows(slot, ids, columns, tables));
  RegionCopier copier(stream_, sizeof(std::int32_t));  // ids of a table begin anywhere among those of the others
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto bytes = std::int64_t{columns[i]} * static_cast<std::int64_t>(sizeof(std::int32_t));
    if (bytes == 0) continue;
    DSV4RT_RETURN_IF_ERROR(copier.add(reinterpret_cast<std::byte*>(tables[i].block_table + slot * tables[i].stride),
                                      reinterpret_cast<const std::byte*>(ids), bytes));
    ids += columns[i];
  }
  return copier.flush();
}

}  // namespace dsv4rt::cuda
