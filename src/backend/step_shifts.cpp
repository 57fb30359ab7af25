#include "backend/step_shifts.h"

#include <algorithm>

namespace dsv4rt {
namespace {

template <class T>
T* at(std::byte* metadata, std::size_t offset) {
  return reinterpret_cast<T*>(metadata + offset);
}

}  // namespace

Status HostStepShifts::note(const StepView& step, const std::int32_t* accepted) {
  std::fill(rejected_.begin(), rejected_.end(), 0);
  for (std::int32_t i = 0; i < step.counts.sequences; ++i) {
    const std::int32_t tokens = step.sequence_first_token[i + 1] - step.sequence_first_token[i];
    rejected_[static_cast<std::size_t>(step.sequence_slot[i])] = rejected_tokens(accepted[i], tokens, most_rejected_);
  }
  return {};
}

Status HostStepShifts::shift(std::byte* metadata, const StepOffsets& offsets, const StepHeader& counts) {
  const auto* slot = at<const std::int32_t>(metadata, offsets.sequence_slot);
  const auto* first = at<const std::int32_t>(metadata, offsets.sequence_first_token);
  auto* start = at<std::int32_t>(metadata, offsets.sequence_start);
  auto* position = at<std::int32_t>(metadata, offsets.token_position);
  for (std::int32_t i = 0; i < counts.sequences; ++i) {
    const std::int32_t back = rejected_[static_cast<std::size_t>(slot[i])];
    if (back == 0) continue;
    start[i] -= back;
    for (std::int32_t t = first[i]; t < first[i + 1]; ++t) {
      position[t] -= back;
      for (std::size_t c = 0; c < ratios_.size(); ++c) {
        const bool ends_block = (position[t] + 1) % ratios_[c] == 0;
        at<std::uint8_t>(metadata, offsets.valid_mask[c])[t] = ends_block ? 1 : 0;
        at<std::int32_t>(metadata, offsets.row_index[c])[t] = ends_block ? position[t] / ratios_[c] : -1;
      }
    }
  }
  return {};
}

}  // namespace dsv4rt
