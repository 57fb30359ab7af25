// A machine as a model: the cache manager decides about blocks as it would for an engine, and steps take the time that
// a step-time table says. No bytes of a cache exist.
//
// One thread. The clock outlives it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "cache/cache_layout.h"
#include "cache/kv_cache_manager.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/model.h"
#include "replay/clock.h"
#include "replay/replay_executor.h"
#include "replay/step_time_model.h"

namespace dsv4rt::replay {

struct ModelExecutorOptions {
  CacheFormats formats;
  CacheLimits limits;  // boundary_states 0: no prefix cache
  PrefixPolicy prefixes;
  PrefixEviction eviction = PrefixEviction::kUseful;
  // Moving sequences to host memory and back: time each way, and the most bytes there at a time.
  double snapshot_ms_per_gib = 40;  // about 25 GiB/s
  std::int64_t snapshot_bytes = std::int64_t{16} << 30;
};

class ModelExecutor : public ReplayExecutor {
 public:
  // Errors of the schedule, layout and plan; kInvalidArgument for snapshot figures that are negative or not finite.
  static Result<std::unique_ptr<ModelExecutor>> create(const ModelConfig& config, const ModelExecutorOptions& options,
                                                       const StepTimeModel& times, VirtualClock& clock);

  Result<SequenceStart> create(std::span<const std::int32_t> token_ids, std::int64_t reserve_tokens) override;
  Status prepare(std::span<const StepPart> parts) override;
  Status run(std::span<const StepPart> parts) override;
  Status commit(std::span<const std::int32_t> accepted) override;
  Status rollback() override;
  Status release(SequenceId sequence) override;
  Result<SavedSequence> save(SequenceId sequence) override;
  Result<SequenceId> restore(SavedSequence saved, std::int64_t reserve_tokens) override;
  Status drop(SavedSequence saved) override;

  [[nodiscard]] const MemoryPlan& memory_plan() const override { return plan_; }
  void occupancy(CacheOccupancy& occupancy) const override;
  [[nodiscard]] PrefixStats prefix_stats() const override { return manager_->prefix_stats(); }
  [[nodiscard]] std::int64_t cached_tokens(std::span<const std::int32_t> token_ids) const override;
  [[nodiscard]] ExecutorCounts counts() const override { return counts_; }
  [[nodiscard]] Status check() const override { return manager_->check_invariants(); }

 private:
  ModelExecutor(const StepTimeModel& times, VirtualClock& clock) : times_(times), clock_(&clock) {}
  [[nodiscard]] std::int64_t bytes_of(std::int64_t length) const noexcept;
  void pass_copy_time(std::int64_t bytes);

  ModelExecutorOptions options_;
  StepTimeModel times_;
  VirtualClock* clock_;
  LayerSchedule schedule_;
  CacheLayout layout_;
  MemoryPlan plan_;
  std::unique_ptr<KVCacheManager> manager_;
  std::vector<StepEntry> entries_;
  std::uint64_t step_serial_ = 0;
  std::map<std::int64_t, std::int64_t> saved_lengths_;
  std::int64_t saved_bytes_ = 0;  // at present
  std::int64_t next_saved_ = 0;
  ExecutorCounts counts_;
};

}  // namespace dsv4rt::replay
