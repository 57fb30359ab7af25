// CacheLayout: every region of cache a model needs, derived from the schedule by one role table.
//
// Two lifetimes exist. Paged roles grow with the sequence: a pool of blocks per layer and role, and
// a block table per sequence. Slot roles are rings of fixed size per sequence: every live sequence
// owns one slot, and the ring row of position p is p % ring_rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dsv4rt/memory_plan.h"
#include "dsv4rt/model.h"
#include "layout/row_format.h"

namespace dsv4rt {

// "SWA_KV", "CSA_KV", "INDEX_K", "HCA_KV", "CSA_STATE", "INDEX_STATE", "HCA_STATE".
std::string_view cache_role_name(CacheRole role) noexcept;

// Roles that the compressor of a layer's kind brings; the only place that maps layer kinds to roles. Precondition:
// the layer has a compressor (ratio > 0).
struct CompressorRoles {
  CacheRole rows;
  CacheRole state;
};
CompressorRoles compressor_roles(const LayerSpec& layer) noexcept;

// One paged region: its index in CacheLayout::pools is its pool id and its block-table id.
struct PoolSpec {
  LayerId layer;
  CacheRole role = CacheRole::kCsaKv;
  std::int32_t ratio = 0;        // tokens per row
  std::int32_t ratio_class = 0;  // index into LayerSchedule::ratios()
  BlockShape shape;              // rows per block and bytes
};

// One ring per sequence slot.
struct SlotSpec {
  LayerId layer;
  CacheRole role = CacheRole::kSwaKv;
  std::int32_t needed_rows = 0;  // rows before the next position that it may read
  std::int32_t ring_rows = 0;    // >= needed_rows + 1 (the next position's) + draft budget
  std::int32_t ratio = 0;        // tokens per row of the compressor; 0 for the window
  bool overlap = false;
  std::int64_t row_bytes = 0;    // unpadded: the figure that budgets are stated in
  std::int64_t slot_bytes = 0;   // bytes of one sequence's ring, padding included
  BlockShape shape;              // the ring is one block of ring_rows rows
  std::int32_t state_width = 0;  // state roles: FP32 values of kv (and again of score) per row
};

// Rows of one ring that a boundary state keeps: those of positions [boundary - shape.rows, boundary).
struct BoundarySpec {
  int slot = 0;             // index into CacheLayout::slots
  BlockShape shape;         // layout of the kept rows
  std::int64_t offset = 0;  // from the start of a boundary state, in bytes; a multiple of 256
};

class CacheLayout {
 public:
  // Errors: blocks whose tokens neither divide nor are a multiple of the sharing unit, sizes out of
  // range, a draft budget out of [0, 64]; each names field, value and what is accepted.
  static Result<CacheLayout> create(const ModelConfig& config, const LayerSchedule& schedule,
                                    const CacheFormats& formats);

  [[nodiscard]] const CacheFormats& formats() const noexcept { return formats_; }
  [[nodiscard]] std::span<const PoolSpec> pools() const noexcept { return pools_; }
  [[nodiscard]] std::span<const SlotSpec> slots() const noexcept { return slots_; }
  // Index into pools() / slots() for a layer's role; -1 when the layer does not have it.
  [[nodiscard]] int pool_index(LayerId layer, CacheRole role) const noexcept;
  [[nodiscard]] int slot_index(LayerId layer, CacheRole role) const noexcept;

  // Unpadded row bytes that one more token costs, summed over pools (Flash: 3514.25 with mxfp4 keys).
  [[nodiscard]] double bytes_per_token() const noexcept;
  // Bytes of one sequence's slot over all layers, padding included.
  [[nodiscard]] std::int64_t bytes_per_sequence() const noexcept;
  // Tokens that blocks are shared by: 256, a multiple of the schedule's alignment. The smallest
  // common prefix that two sequences can share through whole rows of every pool.
  [[nodiscard]] std::int64_t sharing_unit_tokens() const noexcept { return sharing_unit_tokens_; }
  // Tokens that prefixes are cached by: 128, rounded up to a multiple of the schedule's alignment. At a multiple of
  // it every compressor has just finished a block.
  [[nodiscard]] std::int64_t prefix_unit_tokens() const noexcept { return prefix_unit_tokens_; }
  // What a sequence whose length is such a multiple needs of its rings: window rows, and the block before it in
  // overlapping compressors. The state of other compressors is dead there.
  [[nodiscard]] std::span<const BoundarySpec> boundary() const noexcept { return boundary_; }
  [[nodiscard]] std::int64_t boundary_state_bytes() const noexcept { return boundary_state_bytes_; }

 private:
  void add_boundary_rows();

  CacheFormats formats_;
  std::vector<PoolSpec> pools_;
  std::vector<SlotSpec> slots_;
  std::vector<BoundarySpec> boundary_;
  std::int64_t boundary_state_bytes_ = 0;  // a multiple of 256
  std::int64_t sharing_unit_tokens_ = 0;
  std::int64_t prefix_unit_tokens_ = 0;
};

// The oldest ring row a sequence of `length` tokens still needs for its next token: positions
// [first_needed_position(spec, length), length) must be in the ring.
// Window: length - window + 1. CSA-like: start of the previous block. HCA-like: start of the current block.
std::int64_t first_needed_position(const SlotSpec& spec, std::int64_t length) noexcept;

// The shortest length L with first_needed_position(spec, L) still in a ring that holds the rows of
// positions [high_water - ring_rows, high_water). Every length from there to high_water is reachable.
std::int64_t earliest_reachable_length(const SlotSpec& spec, std::int64_t high_water) noexcept;

}  // namespace dsv4rt
