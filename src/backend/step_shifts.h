// Where a step's tokens go when only the device knows how many tokens of the step before it were accepted.
//
// The host prepares such a step as if all of them had been. Rejected tokens then move its positions back: note() keeps
// what a step's counts reject, by slot, and shift() rewrites the uploaded metadata of the next one. Neither waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dsv4rt/status.h"
#include "step/step_metadata.h"

namespace dsv4rt {

// Tokens that the count takes back of an entry; 0 for a count that is not accepted, as if it were all of them: host and
// device agree on what becomes of it.
constexpr std::int32_t rejected_tokens(std::int32_t accepted, std::int32_t tokens, std::int32_t most_rejected) {
  return accepted < 0 || accepted > tokens || tokens - accepted > most_rejected ? 0 : tokens - accepted;
}

class StepShifts {
 public:
  virtual ~StepShifts() = default;
  // `accepted` [B] is read in stream order; slots that are not in the step reject nothing.
  virtual Status note(const StepView& step, const std::int32_t* accepted) = 0;
  // Between the upload of a step's packed metadata and its first reader. Afterwards its arrays are those of a step
  // whose sequences start where they really end; counts and block lists stay what they are, upper bounds.
  virtual Status shift(std::byte* metadata, const StepOffsets& offsets, const StepHeader& counts) = 0;
};

struct StepShiftLimits {
  std::int32_t most_rejected = 0;        // tokens that one entry may lose
  std::span<const std::int32_t> ratios;  // LayerSchedule::ratios(), by ratio class
};

// Of a backend whose memory is the host's.
class HostStepShifts final : public StepShifts {
 public:
  HostStepShifts(std::span<std::int32_t> rejected, const StepShiftLimits& limits)
      : rejected_(rejected),
        most_rejected_(limits.most_rejected),
        ratios_(limits.ratios.begin(), limits.ratios.end()) {}

  Status note(const StepView& step, const std::int32_t* accepted) override;
  Status shift(std::byte* metadata, const StepOffsets& offsets, const StepHeader& counts) override;

 private:
  std::span<std::int32_t> rejected_;  // index: slot
  std::int32_t most_rejected_;
  std::vector<std::int32_t> ratios_;
};

}  // namespace dsv4rt
