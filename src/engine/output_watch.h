// Which entries of the last steps had outputs that are not finite.
//
// Every layer flags entries in backend memory (Ops::flag_non_finite). At the end of the step the flags start their way
// to the host; what has arrived is noticed at later calls. Takes no memory after create().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "backend/backend.h"
#include "dsv4rt/engine.h"

namespace dsv4rt {

class OutputWatch {
 public:
  OutputWatch() = default;  // looks at nothing
  // The backend outlives the object.
  static Result<OutputWatch> create(Backend& backend, std::int32_t max_sequences);
  static std::int64_t bytes(std::int32_t max_sequences) {
    return std::int64_t{max_sequences} * std::int64_t{sizeof(std::int32_t)};
  }

  [[nodiscard]] bool on() const noexcept { return reads_ != nullptr; }
  [[nodiscard]] std::int32_t* flags() const noexcept { return flags_.as<std::int32_t>(); }

  // The step has been committed or cancelled; nothing flags its entries any more.
  Status end_step(std::uint64_t serial, std::int32_t entries);

  struct Found {
    std::uint64_t serial = 0;  // the last step that was found to have entries that are not finite; 0: none
    std::int32_t entries = 0;  // how many
  };
  // Notices what has arrived since the last call.
  Result<Found> poll();
  // kFailedPrecondition for a step that is not one of the last eight.
  [[nodiscard]] Result<OutputCheck> check(std::uint64_t serial) const;
  // Entries found since the beginning.
  [[nodiscard]] std::int64_t found() const noexcept { return found_; }

 private:
  struct EndedStep {
    std::uint64_t serial = 0;  // 0: none
    std::int32_t entries = 0;
    std::span<const std::byte> flags;  // empty: not yet here
  };
  static bool flagged(const EndedStep& step, std::int32_t entry);

  Buffer flags_;
  std::unique_ptr<ReadBacks> reads_;
  std::array<EndedStep, kStepUploads> steps_;  // step uploads keep more from being under way
  std::size_t next_ = 0;
  std::int64_t found_ = 0;
};

}  // namespace dsv4rt
