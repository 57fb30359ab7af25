// The metadata of one step: what the cache manager tells the kernels, packed into one buffer.
//
// KVCacheManager::prepare_forward writes it; the backend uploads it once per step; every operation
// of every layer reads it. All arrays live at fixed offsets of a buffer whose capacity follows from
// the limits given at start (StepCapacity), so that a captured graph finds them at stable addresses.
//
// Invariants:
//  * tokens of one sequence are consecutive, in position order;
//  * padding tokens follow all real ones: token_sequence = -1, position 0, every mask 0;
//  * valid_mask[t] = 1 iff token t completes a block of the ratio: (position + 1) % ratio == 0;
//  * row_index[t] = position / ratio where valid_mask[t], otherwise -1.
//
// A captured launch keeps the counts of its capture. Kernels therefore take from StepView::counts
// nothing but `tokens`, which the capture's bucket fixes; everything else they read from the arrays.
// longest_entry, context_end and sequences are bounds for the host's choice of kernels and grids, on which no byte
// depends: a capture may round them up, and takes one sequence a row. Where there are fewer sequences than tokens their
// number is exact.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsv4rt {

inline constexpr int kMaxRatioClasses = 4;

// Writes `block` into device block table `table`, row `slot`, column `index`.
struct BlockTableDelta {
  std::int32_t table;
  std::int32_t slot;
  std::int32_t index;
  std::int32_t block;
};
static_assert(sizeof(BlockTableDelta) == 16);

// Copies block `source` to block `target` within pool `table` (copy-on-write of a shared block).
struct BlockCopy {
  std::int32_t table;
  std::int32_t source;
  std::int32_t target;
  std::int32_t reserved;
};
static_assert(sizeof(BlockCopy) == 16);

// First bytes of the buffer.
struct StepHeader {
  std::int32_t tokens;        // rows of x, padding included
  std::int32_t valid_tokens;  // rows that belong to sequences
  std::int32_t sequences;
  std::int32_t table_deltas;
  std::int32_t block_copies;
  std::int32_t longest_entry;  // most tokens that one sequence has in the step, or more
  std::int32_t context_end;    // one past the largest position of the step, or more
  std::int32_t reserved;
};
static_assert(sizeof(StepHeader) == 32);

// Upper bounds that fix the buffer's size and offsets.
struct StepCapacity {
  std::int32_t tokens = 0;
  std::int32_t sequences = 0;
  std::int32_t ratio_classes = 0;
  std::int32_t table_deltas = 0;
  std::int32_t block_copies = 0;
};

// Byte offsets of the arrays; each is 64-byte aligned.
struct StepOffsets {
  std::size_t token_position = 0;                 // i32 [tokens]
  std::size_t token_sequence = 0;                 // i32 [tokens]  index into the sequence arrays, -1: padding
  std::size_t sequence_slot = 0;                  // i32 [sequences]  state slot and block-table row
  std::size_t sequence_start = 0;                 // i32 [sequences]  position of its first token in this step
  std::size_t sequence_first_token = 0;           // i32 [sequences + 1]  row of x of its first token
  std::size_t valid_mask[kMaxRatioClasses] = {};  // u8 [tokens]
  std::size_t row_index[kMaxRatioClasses] = {};   // i32 [tokens]
  std::size_t table_deltas = 0;                   // BlockTableDelta [table_deltas]
  std::size_t block_copies = 0;                   // BlockCopy [block_copies]
  std::size_t total_bytes = 0;
};
StepOffsets step_offsets(const StepCapacity& capacity);

// Typed pointers into a packed buffer (host or device memory). Trivially copyable: kernels take it
// by value. Counts are the host's; on the device the header holds the same.
struct StepView {
  StepHeader counts{};
  const std::int32_t* token_position = nullptr;
  const std::int32_t* token_sequence = nullptr;
  const std::int32_t* sequence_slot = nullptr;
  const std::int32_t* sequence_start = nullptr;
  const std::int32_t* sequence_first_token = nullptr;
  const std::uint8_t* valid_mask[kMaxRatioClasses] = {};
  const std::int32_t* row_index[kMaxRatioClasses] = {};
  const BlockTableDelta* table_deltas = nullptr;
  const BlockCopy* block_copies = nullptr;
};
// `base` is where the buffer lies for the reader; `counts` come from the host copy's header.
StepView step_view(const std::byte* base, const StepOffsets& offsets, const StepHeader& counts);

}  // namespace dsv4rt
