// The operations of the CPU backend. One source file per family of operations.
#pragma once

#include <memory>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/parallel.h"
#include "backend/ops.h"

namespace dsv4rt::cpu {

class LinearExecutor;
class WorkerScratch;

class CpuOps final : public Ops {
 public:
  // The team outlives the object. `isa` must be supported by the processor.
  CpuOps(const ThreadTeam& team, IsaLevel isa);
  ~CpuOps() override;
  CpuOps(const CpuOps&) = delete;
  CpuOps& operator=(const CpuOps&) = delete;

  Status linear(std::int32_t tokens, std::span<const LinearCall> calls) override;  // cpu_linear.cpp

  Status rms_norm(const RmsNormParams& params) override;  // cpu_query.cpp
  Status query(const QueryParams& params) override;       // cpu_query.cpp

  Status window_rows(const WindowRowsParams& params) override;    // cpu_window.cpp
  Status window_store(const WindowStoreParams& params) override;  // cpu_window.cpp

  Status compress(const CompressParams& params) override;       // cpu_compress.cpp
  Status state_store(const StateStoreParams& params) override;  // cpu_compress.cpp

  Status index_query(const IndexQueryParams& params) override;  // cpu_index.cpp
  Status select_rows(const SelectRowsParams& params) override;  // cpu_index.cpp

  Status attend(const AttendParams& params) override;  // cpu_attend.cpp

  Status begin_step(const StepView& step, std::span<const CacheTable> tables) override;  // cpu_cache_moves.cpp
  Status copy_slot(std::int32_t source, std::int32_t target, std::span<const CacheTable> tables,
                   std::span<const CacheRings> rings) override;  // cpu_cache_moves.cpp

 private:
  const ThreadTeam& team_;
  IsaLevel isa_;
  std::unique_ptr<LinearExecutor> linear_;
  std::unique_ptr<WorkerScratch> scratch_;  // of select_rows and attend
};

}  // namespace dsv4rt::cpu
