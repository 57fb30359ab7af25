// What an engine holds at a moment, as data: for schedulers, metrics and external kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "dsv4rt/types.h"

namespace dsv4rt {

// Blocks of one paged role, in each of its layers: all layers of a role page alike.
// total = free + used + cached + pinned.
struct RoleState {
  CacheRole role = CacheRole::kCsaKv;
  std::int32_t layers = 0;
  std::int32_t tokens_per_block = 0;
  std::int64_t total_blocks = 0;     // the null block excluded
  std::int64_t free_blocks = 0;      // nobody's
  std::int64_t used_blocks = 0;      // some sequence's, shared ones counted once
  std::int64_t cached_blocks = 0;    // kept by prefixes alone, to be had when blocks are short
  std::int64_t pinned_blocks = 0;    // kept by pinned prefixes alone
  std::int64_t reserved_blocks = 0;  // owed to reservations: part of free and cached
};

// Tokens of an outstanding step and their blocks are included.
struct EngineState {
  std::int32_t max_sequences = 0;
  std::int32_t live_sequences = 0;
  // Serial of the outstanding step; 0: none.
  std::uint64_t step = 0;
  // Tokens that fit into the unreserved blocks of the shortest role. Tokens that fill begun blocks come on top, and
  // many short sequences leave the ends of their blocks empty. INT64_MAX when no layer pages.
  std::int64_t tokens_left = 0;
  std::vector<RoleState> roles;  // paged ones, by role
};

struct SequenceState {
  std::int64_t length = 0;          // tokens, those of an outstanding step included
  std::int64_t reserve_tokens = 0;  // length up to which steps cannot lack blocks; 0: none
  // The shortest length > 0 that truncate accepts wherever no boundary state is kept.
  std::int64_t earliest_truncation = 0;
  std::int64_t saved_tokens = 0;  // SnapshotOptions::base_tokens of the next increment; 0: it has to be saved whole
  std::int32_t held_by = -1;      // the rank that alone has it, by StepOptions::hand_over_to; -1: every rank
  // Row of the sequence in block tables, and its ring: CacheView.
  std::int32_t slot = 0;
  std::array<std::int64_t, kCacheRoleCount>
      blocks{};  // index: role; held in each of its layers, 0 where nothing is paged
};

// What keeps a step from being prepared.
struct BlockShortage {
  CacheRole role = CacheRole::kCsaKv;
  LayerId layer;                    // the first layer of the role
  std::int64_t missing_blocks = 0;  // for the whole step, in each layer of the role
  std::int64_t missing_bytes = 0;   // what these are in one layer
  std::int32_t entry = 0;           // first entry whose blocks are not there: those before it alone would fit
};

inline constexpr std::size_t kMostMetricLabels = 16;
// A label that the caller puts on metrics, for the time of the call.
struct MetricLabel {
  std::string_view name;
  std::string_view value;
};

// Where one layer keeps a role, for kernels that read the cache themselves. Pointers are backend memory and stay the
// same as long as the engine lives. Read only, on the engine's stream or ordered after it. Content is that of the
// sequences' lengths once every layer of a step has been enqueued, until the next call that changes the engine. A block
// table follows with the first layer of a step that runs, and with the calls that begin a sequence from others'
// content; an entry beyond a sequence's blocks is meaningless. Rows beyond a sequence's length are too.
struct CacheView {
  CacheRole role = CacheRole::kSwaKv;
  LayerId layer;
  // Paged roles: blocks of all sequences, found by the block table. Others: one ring per slot, in which position p is
  // row p % rows_per_block.
  bool paged = false;
  std::string_view format = {};  // a row's: "fp8_ds_mla", "mxfp4", ...; "f32_state" for compressor states
  const std::byte* base = nullptr;
  std::int64_t block_stride_bytes = 0;  // from block to block, or from slot to slot
  std::int64_t block_count = 0;         // the null block, 0, included; or slots
  std::int32_t rows_per_block = 0;
  // Row r of a block: data at r * data_bytes, scales at scale_offset + r * scale_bytes (docs/formats.md).
  std::int32_t data_bytes = 0;
  std::int32_t scale_bytes = 0;  // 0: the format has no separate scales
  std::int64_t scale_offset = 0;
  std::int32_t tokens_per_row = 1;
  // [max_sequences][block_table_columns] block ids; row: SequenceState::slot, of which the first SequenceState::blocks
  // are the sequence's. Null unless paged.
  const std::int32_t* block_table = nullptr;
  std::int64_t block_table_columns = 0;
};

}  // namespace dsv4rt
