#include "step/step_metadata.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

struct Range {
  std::size_t first;
  std::size_t bytes;
};

// Every array of the buffer with the bytes that the capacity promises, in no particular order.
std::vector<Range> ranges_of(const StepCapacity& capacity, const StepOffsets& offsets) {
  const auto tokens = static_cast<std::size_t>(capacity.tokens);
  const auto sequences = static_cast<std::size_t>(capacity.sequences);
  std::vector<Range> ranges = {
      {0, 32},  // the header
      {offsets.token_position, tokens * 4},
      {offsets.token_sequence, tokens * 4},
      {offsets.sequence_slot, sequences * 4},
      {offsets.sequence_start, sequences * 4},
      {offsets.sequence_first_token, (sequences + 1) * 4},
      {offsets.table_deltas, static_cast<std::size_t>(capacity.table_deltas) * 16},
      {offsets.block_copies, static_cast<std::size_t>(capacity.block_copies) * 16},
  };
  for (int c = 0; c < capacity.ratio_classes; ++c) {
    ranges.push_back({offsets.valid_mask[c], tokens});
    ranges.push_back({offsets.row_index[c], tokens * 4});
  }
  return ranges;
}

TEST(StepMetadata, ArraysAreAlignedDisjointAndInsideTheBuffer) {
  const std::vector<StepCapacity> capacities = {
      {.tokens = 1, .sequences = 1, .ratio_classes = 0, .table_deltas = 0, .block_copies = 0},
      {.tokens = 1, .sequences = 1, .ratio_classes = 1, .table_deltas = 1, .block_copies = 1},
      {.tokens = 16, .sequences = 15, .ratio_classes = 2, .table_deltas = 4, .block_copies = 4},
      {.tokens = 17, .sequences = 16, .ratio_classes = 3, .table_deltas = 5, .block_copies = 3},
      {.tokens = 8192, .sequences = 256, .ratio_classes = kMaxRatioClasses, .table_deltas = 70001, .block_copies = 513},
  };
  for (const StepCapacity& capacity : capacities) {
    SCOPED_TRACE(capacity.tokens);
    const StepOffsets offsets = step_offsets(capacity);
    std::vector<Range> ranges = ranges_of(capacity, offsets);
    for (const Range& range : ranges) EXPECT_EQ(range.first % 64, 0u) << range.first;
    EXPECT_EQ(offsets.total_bytes % 64, 0u);
    // An empty array may share its offset with the next one.
    std::erase_if(ranges, [](const Range& range) { return range.bytes == 0; });
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const std::size_t limit = i + 1 < ranges.size() ? ranges[i + 1].first : offsets.total_bytes;
      EXPECT_LE(ranges[i].first + ranges[i].bytes, limit) << "array at " << ranges[i].first;
    }
  }
}

TEST(StepMetadata, AbsentRatioClassesHaveNoArrays) {
  const StepOffsets offsets =
      step_offsets({.tokens = 8, .sequences = 2, .ratio_classes = 2, .table_deltas = 3, .block_copies = 1});
  for (int c = 0; c < kMaxRatioClasses; ++c) {
    EXPECT_EQ(offsets.valid_mask[c] != 0, c < 2);
    EXPECT_EQ(offsets.row_index[c] != 0, c < 2);
  }
}

TEST(StepMetadata, ViewPointsIntoTheBuffer) {
  const StepOffsets offsets =
      step_offsets({.tokens = 8, .sequences = 2, .ratio_classes = 2, .table_deltas = 3, .block_copies = 1});
  std::vector<std::byte> buffer(offsets.total_bytes);
  StepHeader counts{};
  counts.tokens = 7;
  counts.sequences = 2;
  const StepView view = step_view(buffer.data(), offsets, counts);
  const auto at = [&buffer](const void* pointer) {
    return static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - buffer.data());
  };
  EXPECT_EQ(view.counts.tokens, 7);
  EXPECT_EQ(at(view.token_position), offsets.token_position);
  EXPECT_EQ(at(view.token_sequence), offsets.token_sequence);
  EXPECT_EQ(at(view.sequence_slot), offsets.sequence_slot);
  EXPECT_EQ(at(view.sequence_start), offsets.sequence_start);
  EXPECT_EQ(at(view.sequence_first_token), offsets.sequence_first_token);
  EXPECT_EQ(at(view.table_deltas), offsets.table_deltas);
  EXPECT_EQ(at(view.block_copies), offsets.block_copies);
  for (int c = 0; c < 2; ++c) {
    EXPECT_EQ(at(view.valid_mask[c]), offsets.valid_mask[c]);
    EXPECT_EQ(at(view.row_index[c]), offsets.row_index[c]);
  }
  for (int c = 2; c < kMaxRatioClasses; ++c) {
    EXPECT_EQ(view.valid_mask[c], nullptr);
    EXPECT_EQ(view.row_index[c], nullptr);
  }
}

}  // namespace
}  // namespace dsv4rt
