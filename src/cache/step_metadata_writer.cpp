#include "cache/step_metadata_writer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/arithmetic.h"

namespace dsv4rt {

StepMetadataWriter::StepMetadataWriter(const StepCapacity& capacity, std::span<const std::int32_t> ratios)
    : ratios_(ratios.begin(), ratios.end()), offsets_(step_offsets(capacity)) {
  buffer_.resize(ceil_div(offsets_.total_bytes, sizeof(Line)));
  deltas_ = at<BlockTableDelta>(offsets_.table_deltas);
  copies_ = at<BlockCopy>(offsets_.block_copies);
}

void StepMetadataWriter::finish(std::span<const StepSegment> segments, std::int32_t rows) noexcept {
  for (std::size_t c = 0; c < ratios_.size(); ++c) {
    std::fill_n(at<std::uint8_t>(offsets_.valid_mask[c]), rows, std::uint8_t{0});
    std::fill_n(at<std::int32_t>(offsets_.row_index[c]), rows, -1);
  }
  std::int32_t* first_token = at<std::int32_t>(offsets_.sequence_first_token);
  std::int32_t row = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    first_token[i] = row;
    write_segment(static_cast<std::int32_t>(i), segments[i], row);
    row += segments[i].tokens;
    counts_.longest_entry = std::max(counts_.longest_entry, segments[i].tokens);
    counts_.context_end = std::max(counts_.context_end, segments[i].start + segments[i].tokens);
  }
  first_token[segments.size()] = row;
  std::fill_n(at<std::int32_t>(offsets_.token_position) + row, rows - row, 0);
  std::fill_n(at<std::int32_t>(offsets_.token_sequence) + row, rows - row, -1);

  counts_.tokens = rows;
  counts_.valid_tokens = row;
  counts_.sequences = static_cast<std::int32_t>(segments.size());
  std::memcpy(at<std::byte>(0), &counts_, sizeof(counts_));
}

void StepMetadataWriter::write_segment(std::int32_t sequence, const StepSegment& segment,
                                       std::int32_t first_row) noexcept {
  at<std::int32_t>(offsets_.sequence_slot)[sequence] = segment.slot;
  at<std::int32_t>(offsets_.sequence_start)[sequence] = segment.start;
  std::int32_t* position = at<std::int32_t>(offsets_.token_position) + first_row;
  std::iota(position, position + segment.tokens, segment.start);
  std::fill_n(at<std::int32_t>(offsets_.token_sequence) + first_row, segment.tokens, sequence);
  for (std::size_t c = 0; c < ratios_.size(); ++c) {
    const auto ratio = static_cast<std::uint32_t>(ratios_[c]);
    const auto start = static_cast<std::uint32_t>(segment.start);
    std::uint8_t* mask = at<std::uint8_t>(offsets_.valid_mask[c]) + first_row;
    std::int32_t* row_index = at<std::int32_t>(offsets_.row_index[c]) + first_row;
    auto finished = static_cast<std::int32_t>(start / ratio);  // the row that the block of `start` becomes
    // Only tokens that end a block get a row: step from one block end to the next.
    for (std::uint32_t t = ratio - 1 - start % ratio; t < static_cast<std::uint32_t>(segment.tokens); t += ratio) {
      mask[t] = 1;
      row_index[t] = finished++;
    }
  }
}

}  // namespace dsv4rt
