#include "step/step_metadata.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kArrayAlignment = 64;

// Hands out aligned, consecutive ranges.
class OffsetCursor {
 public:
  explicit OffsetCursor(std::size_t first) : next_(first) {}
  std::size_t take(std::size_t bytes) {
    const std::size_t at = (next_ + kArrayAlignment - 1) / kArrayAlignment * kArrayAlignment;
    next_ = at + bytes;
    return at;
  }
  [[nodiscard]] std::size_t end() const { return next_; }

 private:
  std::size_t next_;
};

}  // namespace

StepOffsets step_offsets(const StepCapacity& capacity) {
  const auto tokens = static_cast<std::size_t>(capacity.tokens);
  const auto sequences = static_cast<std::size_t>(capacity.sequences);
  OffsetCursor cursor(sizeof(StepHeader));
  StepOffsets offsets;
  offsets.token_position = cursor.take(tokens * sizeof(std::int32_t));
  offsets.token_sequence = cursor.take(tokens * sizeof(std::int32_t));
  offsets.sequence_slot = cursor.take(sequences * sizeof(std::int32_t));
  offsets.sequence_start = cursor.take(sequences * sizeof(std::int32_t));
  offsets.sequence_first_token = cursor.take((sequences + 1) * sizeof(std::int32_t));
  for (int c = 0; c < capacity.ratio_classes; ++c) {
    offsets.valid_mask[c] = cursor.take(tokens);
    offsets.row_index[c] = cursor.take(tokens * sizeof(std::int32_t));
  }
  offsets.table_deltas = cursor.take(static_cast<std::size_t>(capacity.table_deltas) * sizeof(BlockTableDelta));
  offsets.block_copies = cursor.take(static_cast<std::size_t>(capacity.block_copies) * sizeof(BlockCopy));
  offsets.total_bytes = cursor.take(0);
  return offsets;
}

StepView step_view(const std::byte* base, const StepOffsets& offsets, const StepHeader& counts) {
  const auto at = [base]<class T>(std::size_t offset, const T*) { return reinterpret_cast<const T*>(base + offset); };
  constexpr const std::int32_t* kI32 = nullptr;
  constexpr const std::uint8_t* kU8 = nullptr;
  StepView view;
  view.counts = counts;
  view.token_position = at(offsets.token_position, kI32);
  view.token_sequence = at(offsets.token_sequence, kI32);
  view.sequence_slot = at(offsets.sequence_slot, kI32);
  view.sequence_start = at(offsets.sequence_start, kI32);
  view.sequence_first_token = at(offsets.sequence_first_token, kI32);
  for (int c = 0; c < kMaxRatioClasses; ++c) {
    if (offsets.valid_mask[c] == 0) continue;  // offset 0 is the header: no such class
    view.valid_mask[c] = at(offsets.valid_mask[c], kU8);
    view.row_index[c] = at(offsets.row_index[c], kI32);
  }
  view.table_deltas = at(offsets.table_deltas, static_cast<const BlockTableDelta*>(nullptr));
  view.block_copies = at(offsets.block_copies, static_cast<const BlockCopy*>(nullptr));
  return view;
}

}  // namespace dsv4rt
