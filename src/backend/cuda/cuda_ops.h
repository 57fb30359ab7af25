// The operations of a layer on one CUDA stream. Every method validates on the host, launches, and
// returns without waiting; errors of the launch are returned, errors of a running kernel surface at
// the next call that waits.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/scratch.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

class CudaOps final : public Ops {
 public:
  // `scratch` and the stream outlive the object.
  CudaOps(cudaStream_t stream, Scratch& scratch) : stream_(stream), scratch_(scratch) {}

  Status linear(std::int32_t tokens, std::span<const LinearCall> calls) override;
  Status rms_norm(const RmsNormParams& params) override;
  Status query(const QueryParams& params) override;
  Status window_rows(const WindowRowsParams& params) override;
  Status window_store(const WindowStoreParams& params) override;
  Status compress(const CompressParams& params) override;
  Status state_store(const StateStoreParams& params) override;
  Status index_query(const IndexQueryParams& params) override;
  Status select_rows(const SelectRowsParams& params) override;
  Status attend(const AttendParams& params) override;
  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override;
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override;

 private:
  cudaStream_t stream_;
  Scratch& scratch_;
};

}  // namespace dsv4rt::cuda
