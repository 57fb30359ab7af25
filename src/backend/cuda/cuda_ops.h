// The operations of a layer on one CUDA stream of the current device. Every method validates on the host, launches, and
// returns without waiting; errors of the launch are returned, errors of a running kernel surface at
// the next call that waits.
#pragma once

#include <cuda_runtime_api.h>
#include <functional>
#include <memory>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/scratch.h"
#include "backend/cuda/slow_path_report.h"
#include "backend/row_ops.h"

namespace dsv4rt::cuda {

class CublasLtLinear;

class CudaOps final : public RowOps {
 public:
  // `device`, which is current in every call, the stream and `scratch` outlive the object. library: runs what it takes;
  // null: nothing. warn: told of every reason for which an operation runs on slow kernels, once; may be empty.
  CudaOps(const CudaDevice& device, cudaStream_t stream, Scratch& scratch,
          std::function<void(std::string_view)> warn = {});
  CudaOps(const CudaDevice& device, cudaStream_t stream, Scratch& scratch, std::unique_ptr<CublasLtLinear> library,
          std::function<void(std::string_view)> warn = {});
  ~CudaOps() override;

  Status linear(std::int32_t tokens, std::span<const LinearCall> calls) override;
  Status rms_norm(const RmsNormParams& params) override;
  Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) override;
  [[nodiscard]] bool takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const override;
  Result<bool> encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) override;
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
  cudaStream_t stream_;
  Scratch& scratch_;
  std::unique_ptr<CublasLtLinear> library_;
  SlowPathReport slow_paths_;
};

}  // namespace dsv4rt::cuda
