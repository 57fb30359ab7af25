// The operations of the CPU backend. One source file per family of operations.
#pragma once

#include <memory>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/parallel.h"
#include "backend/row_ops.h"
#include "backend/scratch.h"
#include "backend/step_shapes.h"

namespace dsv4rt::cpu {

class LinearExecutor;

class CpuOps final : public RowOps {
 public:
  // Team and scratch outlive the object; the scratch memory is 64-byte aligned. `isa` must be supported by the
  // processor.
  CpuOps(const ThreadTeam& team, const Scratch& scratch, IsaLevel isa);
  ~CpuOps() override;
  CpuOps(const CpuOps&) = delete;
  CpuOps& operator=(const CpuOps&) = delete;

  // What the largest operation of such steps takes of the scratch memory.
  static std::int64_t scratch_bytes(const StepShapes& shapes, int threads);

  // cpu_linear.cpp
  Status linear(std::int32_t tokens, std::span<const LinearCall> calls) override;
  Status normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) override;

  Status rms_norm(const RmsNormParams& params) override;  // cpu_query.cpp
  Status query(const QueryParams& params) override;       // cpu_query.cpp

  Status swa_kv(const SwaKvParams& params) override;                   // cpu_swa.cpp
  Status swa_cache_write(const SwaCacheWriteParams& params) override;  // cpu_swa.cpp

  Status compress(const CompressParams& params) override;       // cpu_compress.cpp
  Status state_store(const StateStoreParams& params) override;  // cpu_compress.cpp

  Status index_query(const IndexQueryParams& params) override;    // cpu_indexer_topk.cpp
  Status indexer_topk(const IndexerTopkParams& params) override;  // cpu_indexer_topk.cpp

  Status write_kv(const WriteKvParams& params) override;  // cpu_write_kv.cpp

  // cpu_finished_rows.cpp
  Status copy_finished_rows(RowDirection direction, const FinishedRowsParams& params) override;

  Status attend(const AttendParams& params) override;  // cpu_attend.cpp
  [[nodiscard]] bool takes_encoded_rows(std::int32_t /*tokens*/, const PackedLinear& /*weight*/) const override {
    return false;
  }
  Result<bool> encodes_outputs(std::int32_t /*tokens*/, std::span<const LinearCall> /*calls*/) override {
    return false;
  }
  Result<bool> norms_queries(const AttendParams& params) override;  // cpu_attend.cpp

  Status flag_non_finite(const FlagNonFiniteParams& params) override;  // cpu_flag_non_finite.cpp

  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override;  // cpu_cache_moves.cpp
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override;  // cpu_cache_moves.cpp
  Status write_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                          std::span<const CacheTable> tables) override;  // cpu_cache_moves.cpp

  // cpu_boundary.cpp
  Status copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                            std::span<const BoundaryRows> rows, const BoundaryStates& states) override;
  Status keep_boundary_rows(const KeepBoundaryParams& params) override;

 private:
  static std::int64_t indexer_topk_scratch_bytes(const StepShapes& shapes, int threads);  // cpu_indexer_topk.cpp
  static std::int64_t attend_scratch_bytes(const StepShapes& shapes, int threads);        // cpu_attend.cpp

  const ThreadTeam& team_;
  const Scratch& scratch_;
  IsaLevel isa_;
  std::unique_ptr<LinearExecutor> linear_;
};

}  // namespace dsv4rt::cpu
