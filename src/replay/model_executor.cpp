#include "replay/model_executor.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/check.h"
#include "base/try.h"
#include "cache/memory_plan.h"
#include "replay/cache_occupancy.h"

namespace dsv4rt::replay {

Result<std::unique_ptr<ModelExecutor>> ModelExecutor::create(const ModelConfig& config,
                                                             const ModelExecutorOptions& options,
                                                             const StepTimeModel& times, VirtualClock& clock) {
  if (!std::isfinite(options.snapshot_ms_per_gib) || options.snapshot_ms_per_gib < 0 || options.snapshot_bytes < 0) {
    return Status{StatusCode::kInvalidArgument, "snapshot_ms_per_gib = " + std::to_string(options.snapshot_ms_per_gib) +
                                                    ", snapshot_bytes = " + std::to_string(options.snapshot_bytes) +
                                                    "; accepted: 0 or more"};
  }
  std::unique_ptr<ModelExecutor> executor(new ModelExecutor(times, clock));
  executor->options_ = options;
  DSV4RT_ASSIGN_OR_RETURN(executor->schedule_, LayerSchedule::create(config));
  DSV4RT_ASSIGN_OR_RETURN(executor->layout_, CacheLayout::create(config, executor->schedule_, options.formats));
  DSV4RT_ASSIGN_OR_RETURN(executor->plan_, plan_memory(config, executor->schedule_, executor->layout_, options.limits));
  DSV4RT_ASSIGN_OR_RETURN(executor->manager_,
                          KVCacheManager::create(executor->schedule_, executor->layout_, executor->plan_,
                                                 {.policy = options.prefixes, .eviction = options.eviction}));
  executor->counts_.extrapolated_steps = 0;
  return executor;
}

Result<SequenceStart> ModelExecutor::create(std::span<const std::int32_t> token_ids, std::int64_t reserve_tokens) {
  if (options_.limits.boundary_states == 0) {
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, manager_->create_sequence(reserve_tokens));
    return SequenceStart{.sequence = sequence};
  }
  SequenceOptions options;
  options.reserve_tokens = reserve_tokens;
  DSV4RT_ASSIGN_OR_RETURN(const PrefixStart start, manager_->create_sequence(token_ids, options));
  return SequenceStart{.sequence = start.sequence, .hit_tokens = start.hit_tokens};
}

Status ModelExecutor::prepare(std::span<const StepPart> parts) {
  entries_.clear();
  for (const StepPart& part : parts) entries_.push_back(part.entry);
  DSV4RT_ASSIGN_OR_RETURN(const StepPlan plan, manager_->prepare_forward(entries_));
  step_serial_ = plan.serial;
  return {};
}

Status ModelExecutor::run(std::span<const StepPart> parts) {
  note_occupancy();
  StepShapeTotals totals;
  for (const StepPart& part : parts) {
    if (part.prefill) {
      totals.prefill_sequences += 1;
      totals.prefill_tokens += part.entry.tokens;
      totals.prefill_context_tokens +=
          static_cast<double>(part.context_tokens) * static_cast<double>(part.entry.tokens);
    } else {
      totals.decode_sequences += 1;
      totals.decode_tokens += part.entry.tokens;
      totals.decode_context_tokens += part.context_tokens;
    }
  }
  const StepTime time = times_.time(totals);
  *counts_.extrapolated_steps += time.extrapolated ? 1 : 0;
  // A step takes time, whatever a table says: a replay must end.
  clock_->advance(std::max<std::int64_t>(1, std::llround(time.microseconds * kNsPerUs)));
  return {};
}

Status ModelExecutor::commit(std::span<const std::int32_t> accepted) {
  return manager_->commit(step_serial_, accepted);
}

Status ModelExecutor::rollback() {
  return manager_->rollback(step_serial_, StepProgress::kStarted).status();
}

Status ModelExecutor::release(SequenceId sequence) {
  return manager_->release(sequence);
}

// ---- Host memory --------------------------------------------------------------------------------

std::int64_t ModelExecutor::bytes_of(std::int64_t length) const noexcept {
  return std::llround(layout_.bytes_per_token() * static_cast<double>(length)) + layout_.bytes_per_sequence();
}

void ModelExecutor::pass_copy_time(std::int64_t bytes) {
  const double gib = static_cast<double>(bytes) / static_cast<double>(std::int64_t{1} << 30);
  clock_->advance(std::llround(gib * options_.snapshot_ms_per_gib * kNsPerMs));
}

Result<SavedSequence> ModelExecutor::save(SequenceId sequence) {
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t length, manager_->length(sequence));
  const std::int64_t bytes = bytes_of(length);
  if (bytes > options_.snapshot_bytes - saved_bytes_) {
    return Status{StatusCode::kResourceExhausted,
                  "host memory for sequences: " + std::to_string(bytes) + " bytes are needed, " +
                      std::to_string(options_.snapshot_bytes - saved_bytes_) + " are left"};
  }
  DSV4RT_RETURN_IF_ERROR(manager_->release(sequence));
  saved_bytes_ += bytes;
  counts_.saves += 1;
  counts_.saved_bytes += bytes;
  counts_.peak_saved_bytes = std::max(counts_.peak_saved_bytes, saved_bytes_);
  saved_lengths_.emplace(next_saved_, length);
  pass_copy_time(bytes);
  return SavedSequence(next_saved_++);
}

Result<SequenceId> ModelExecutor::restore(SavedSequence saved, std::int64_t reserve_tokens) {
  const auto found = saved_lengths_.find(saved.value);
  DSV4RT_CHECK(found != saved_lengths_.end());
  DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, manager_->restore_sequence(found->second, reserve_tokens));
  pass_copy_time(bytes_of(found->second));
  DSV4RT_RETURN_IF_ERROR(drop(saved));
  return sequence;
}

Status ModelExecutor::drop(SavedSequence saved) {
  const auto found = saved_lengths_.find(saved.value);
  DSV4RT_CHECK(found != saved_lengths_.end());
  saved_bytes_ -= bytes_of(found->second);
  saved_lengths_.erase(found);
  return {};
}

// ---- Questions ----------------------------------------------------------------------------------

std::int64_t ModelExecutor::cached_tokens(std::span<const std::int32_t> token_ids) const {
  if (options_.limits.boundary_states == 0) return 0;
  const auto found = manager_->prefix_lookup(token_ids, {});
  return found.ok() ? found->hit_tokens : 0;
}

void ModelExecutor::occupancy(CacheOccupancy& occupancy) const {
  read_occupancy(*manager_, layout_, plan_.limits, occupancy);
}

}  // namespace dsv4rt::replay
