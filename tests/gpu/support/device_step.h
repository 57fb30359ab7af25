// A step of tests/unit/backend/ops_fixture.h with its arrays in device memory.
#pragma once

#include <deque>
#include <span>

#include "gpu/support/gpu.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt::test {

class DeviceStep {
 public:
  DeviceStep(Backend& backend, const StepView& host) : backend_(backend), view_(host) {
    const auto tokens = static_cast<std::size_t>(host.counts.tokens);
    const auto sequences = static_cast<std::size_t>(host.counts.sequences);
    view_.token_position = copy(host.token_position, tokens);
    view_.token_sequence = copy(host.token_sequence, tokens);
    view_.sequence_slot = copy(host.sequence_slot, sequences);
    view_.sequence_start = copy(host.sequence_start, sequences);
    view_.sequence_first_token = copy(host.sequence_first_token, sequences + 1);
    for (int c = 0; c < kMaxRatioClasses; ++c) {
      if (host.valid_mask[c] == nullptr) continue;
      view_.valid_mask[c] = copy(host.valid_mask[c], tokens);
      view_.row_index[c] = copy(host.row_index[c], tokens);
    }
    view_.table_deltas = copy(host.table_deltas, static_cast<std::size_t>(host.counts.table_deltas));
    view_.block_copies = copy(host.block_copies, static_cast<std::size_t>(host.counts.block_copies));
  }
  [[nodiscard]] const StepView& view() const { return view_; }

 private:
  template <class T>
  const T* copy(const T* values, std::size_t count) {
    if (count == 0) return nullptr;
    memory_.push_back(backend_.allocate(count * sizeof(T), "step").value());
    EXPECT_OK(backend_.upload(memory_.back().data(), values, count * sizeof(T)));
    return memory_.back().as<T>();
  }

  Backend& backend_;
  std::deque<Buffer> memory_;
  StepView view_;
};

}  // namespace dsv4rt::test
