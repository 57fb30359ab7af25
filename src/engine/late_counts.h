// Accepted counts of a step that are in backend memory when it ends (Engine::commit_from_device).
//
// take() starts their way to the host and notes on the device what they reject; the step that is prepared next is
// shifted by that before its layers run, so that nobody waits. The counts of one step at most are under way and not
// yet applied to the cache. Takes no memory after create().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "cache/kv_cache_manager.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

class LateCounts {
 public:
  LateCounts() = default;  // takes none
  // A step of `draft_budget_tokens` + 1 tokens can be rejected whole: the rings hold what was before it. The backend
  // outlives the object.
  static Result<LateCounts> create(Backend& backend, std::int32_t max_sequences, std::int32_t draft_budget_tokens,
                                   std::span<const std::int32_t> ratios);
  static std::int64_t bytes(std::int32_t max_sequences) {
    return 2 * std::int64_t{max_sequences} * std::int64_t{sizeof(std::int32_t)};
  }
  [[nodiscard]] bool on() const noexcept { return reads_ != nullptr; }

  struct Entry {
    SequenceId sequence;
    std::int32_t tokens = 0;
  };
  // The step has run as far as it is enqueued; `accepted` [entries] is backend memory.
  Status take(Backend& backend, std::uint64_t serial, const StepView& step, std::span<const Entry> entries,
              const std::int32_t* accepted);
  // Whether counts were taken that settle() has not seen.
  [[nodiscard]] bool pending() const noexcept { return pending_; }
  // Moves the next step's uploaded metadata.
  Status shift(std::byte* metadata, const StepOffsets& offsets, const StepHeader& counts) {
    return shifts_->shift(metadata, offsets, counts);
  }

  struct Settled {
    std::uint64_t serial = 0;
    std::span<const LateRejection> rejections;    // [entries]
    std::span<const std::int32_t> accepted = {};  // [entries], a wrong count replaced by the entry's tokens
  };
  // Waits for the pending counts, and for nothing else; nothing is pending afterwards. A count that cannot be is kept
  // as a failure that somebody has to be told of: take_failure().
  Result<Settled> settle();
  [[nodiscard]] Status take_failure() noexcept { return std::exchange(failure_, Status{}); }

  // Counts of one of the last steps as they were read.
  [[nodiscard]] Result<AcceptedCounts> counts(std::uint64_t serial);

 private:
  static constexpr std::size_t kSteps = 8;
  struct TakenStep {
    std::uint64_t serial = 0;  // 0: none
    std::int32_t entries = 0;
  };
  [[nodiscard]] Status failure_of(std::size_t entry, std::int32_t accepted) const;

  std::int32_t most_rejected_ = 0;
  Buffer counts_;    // i32 [max_sequences]: what is on its way to the host
  Buffer rejected_;  // i32 [max_sequences], by slot
  std::unique_ptr<ReadBacks> reads_;
  std::unique_ptr<StepShifts> shifts_;
  std::array<TakenStep, kSteps> steps_;
  std::size_t last_ = 0;
  bool pending_ = false;
  std::vector<Entry> entries_;  // sequences and tokens of the pending step
  std::vector<LateRejection> rejections_;
  std::vector<std::int32_t> accepted_;
  Status failure_;
};

}  // namespace dsv4rt
