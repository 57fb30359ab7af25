// The operations of a backend, each with the backend's device current while it enqueues and the caller's afterwards.
#pragma once

#include "backend/cuda/device/cuda_device.h"
#include "backend/row_ops.h"

namespace dsv4rt::cuda {

class DeviceOps final : public RowOps {
 public:
  // Both outlive the object.
  DeviceOps(const CudaDevice& device, RowOps& ops) : device_(device), ops_(ops) {}

  Status linear(std::int32_t tokens, std::span<const LinearCall> calls) override;
  Status rms_norm(const RmsNormParams& params) override;
  Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) override;
  Status query(const QueryParams& params) override;
  Status swa_kv(const SwaKvParams& params) override;
  Status swa_cache_write(const SwaCacheWriteParams& params) override;
  Status compress(const CompressParams& params) override;
  Status state_store(const StateStoreParams& params) override;
  Status index_query(const IndexQueryParams& params) override;
  Status write_kv(const WriteKvParams& params) override;
  Status copy_finished_rows(RowDirection direction, const FinishedRowsParams& params) override;
  Status indexer_topk(const IndexerTopkParams& params) override;
  Status attend(const AttendParams& params) override;
  [[nodiscard]] bool takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const override {
    return ops_.takes_encoded_rows(tokens, weight);
  }
  Result<bool> encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) override;
  Result<bool> norms_queries(const AttendParams& params) override;
  Status flag_non_finite(const FlagNonFiniteParams& params) override;
  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override;
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override;
  Status copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                            std::span<const BoundaryRows> rows, const BoundaryStates& states) override;
  Status keep_boundary_rows(const KeepBoundaryParams& params) override;
  Status write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                          std::span<const CacheTable> tables) override;

 private:
  const CudaDevice& device_;
  RowOps& ops_;
};

}  // namespace dsv4rt::cuda
