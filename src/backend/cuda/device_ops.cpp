#include "backend/cuda/device_ops.h"

#include "backend/boundary_state.h"
#include "backend/cuda/device/current_device.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status DeviceOps::linear(std::int32_t tokens, std::span<const LinearCall> calls) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.linear(tokens, calls);
}

Status DeviceOps::rms_norm(const RmsNormParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.rms_norm(params);
}

Status DeviceOps::normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.normed_linear(norm, calls);
}

Status DeviceOps::query(const QueryParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.query(params);
}

Status DeviceOps::swa_kv(const SwaKvParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.swa_kv(params);
}

Status DeviceOps::swa_cache_write(const SwaCacheWriteParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.swa_cache_write(params);
}

Status DeviceOps::compress(const CompressParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.compress(params);
}

Status DeviceOps::state_store(const StateStoreParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.state_store(params);
}

Status DeviceOps::index_query(const IndexQueryParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.index_query(params);
}

Status DeviceOps::write_kv(const WriteKvParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.write_kv(params);
}

Status DeviceOps::copy_finished_rows(RowDirection direction, const FinishedRowsParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.copy_finished_rows(direction, params);
}

Status DeviceOps::indexer_topk(const IndexerTopkParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.indexer_topk(params);
}

Status DeviceOps::attend(const AttendParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.attend(params);
}

Result<bool> DeviceOps::encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.encodes_outputs(tokens, calls);
}

Result<bool> DeviceOps::norms_queries(const AttendParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.norms_queries(params);
}

Status DeviceOps::flag_non_finite(const FlagNonFiniteParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.flag_non_finite(params);
}

Status DeviceOps::begin_step(const StepView& step, std::span<const CacheTable> tables) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.begin_step(step, tables);
}

Status DeviceOps::copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                            std::span<const CacheRings> rings) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.copy_slot(source, target, tables, rings);
}

Status DeviceOps::copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                                     std::span<const BoundaryRows> rows, const BoundaryStates& states) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.copy_boundary_rows(direction, copies, rows, states);
}

Status DeviceOps::keep_boundary_rows(const KeepBoundaryParams& params) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.keep_boundary_rows(params);
}

Status DeviceOps::write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                                   std::span<const CacheTable> tables) {
  DSV4RT_ON_DEVICE(device_);
  return ops_.write_table_rows(slot, ids, columns, tables);
}

}  // namespace dsv4rt::cuda
