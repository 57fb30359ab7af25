// Boundary states: what a sequence that ends at a unit boundary needs from its rings, kept apart from any sequence.
//
// A boundary is a length that is a multiple of every compression ratio. A sequence that continues there reads window
// rows of the positions before it and, in overlapping compressors, the block before it; the state of other compressors
// is dead there. A boundary state holds those rows of every layer; states lie one after another in one buffer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "backend/ops.h"
#include "layout/row_format.h"

namespace dsv4rt {

// One ring of a layer that boundary states keep rows of, and where these rows lie in a state.
struct BoundaryRows {
  std::byte* rings = nullptr;  // ring of slot s: rings + s * slot_bytes
  std::int64_t slot_bytes = 0;
  BlockShape ring;                // ring row of position p: p % ring.rows
  std::int64_t state_offset = 0;  // from the start of a boundary state, in bytes; a multiple of 256
  BlockShape state;               // row i of the state of boundary P is position P - state.rows + i
};

// All boundary states of an engine: states + i * state_bytes is state i; state_bytes is a multiple of 256.
struct BoundaryStates {
  std::byte* states = nullptr;
  std::int64_t state_bytes = 0;
};

// Rows of positions [max(0, boundary - state.rows), min(end, boundary)) of every ring.
struct BoundaryCopy {
  std::int32_t slot = 0;
  std::int32_t state = 0;
  std::int32_t boundary = 0;
  std::int32_t end = 0;  // positions from here on are left alone; `boundary` or less
};

enum class BoundaryDirection : std::uint8_t {
  kFromRings,  // a state is taken
  kToRings,    // a sequence continues from a state
};

// A boundary inside a step: the rows of its tokens below `boundary` are taken from what the layer computed, before
// the rings lose them. `first_token` is the step's row of the sequence's first token, at position `start`.
struct BoundaryCapture {
  std::int32_t first_token = 0;
  std::int32_t start = 0;
  std::int32_t boundary = 0;  // start < boundary <= start + tokens of the sequence
  std::int32_t state = 0;
};

// Fresh rows of one layer for every capture: positions [max(start, boundary - state.rows), boundary). The same bytes
// that swa_cache_write and the state rings get for these positions. Runs after write_kv of the layer.
struct KeepBoundaryParams {
  std::span<const BoundaryCapture> captures;
  BoundaryStates states;
  BlockShape staged_shape;
  const std::byte* staged = nullptr;  // window rows of the step, as write_kv staged them
  BoundaryRows window;
  // Overlapping compressors only: projections of the step, and the rows of their rings in a state.
  struct Compressor {
    CompressorInput input;
    BoundaryRows rows;
  };
  std::optional<Compressor> compressor;
  std::optional<Compressor> index_compressor;
};

}  // namespace dsv4rt
