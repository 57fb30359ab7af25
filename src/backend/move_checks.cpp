#include "backend/move_checks.h"

#include "backend/require.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kStateAlignment = 256;

Status check_states(const BoundaryStates& states, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(require_pointer(states.states, operation, "states.states"));
  return require(states.state_bytes > 0 && states.state_bytes % kStateAlignment == 0, operation, "states.state_bytes",
                 states.state_bytes, "positive multiples of 256");
}

// Where the rows of a ring lie in a state.
Status check_place(const BoundaryRows& rows, const BoundaryStates& states, const char* operation) {
  const BlockShape& shape = rows.state;
  DSV4RT_RETURN_IF_ERROR(require(shape.rows >= 1, operation, "state.rows", shape.rows, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(shape.data_bytes >= 1, operation, "state.data_bytes", shape.data_bytes, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(
      require(shape.scale_bytes >= 0, operation, "state.scale_bytes", shape.scale_bytes, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(rows.state_offset >= 0 && rows.state_offset % kStateAlignment == 0, operation,
                                 "state_offset", rows.state_offset, "multiples of 256"));
  return require(rows.state_offset <= states.state_bytes - shape.scale_offset(shape.rows), operation, "state_offset",
                 rows.state_offset, "those whose rows end within state_bytes");
}

Status check_ring(const BoundaryRows& rows, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(require_pointer(rows.rings, operation, "rings"));
  DSV4RT_RETURN_IF_ERROR(
      require(rows.ring.rows >= rows.state.rows, operation, "ring.rows", rows.ring.rows, "state.rows or more"));
  DSV4RT_RETURN_IF_ERROR(require(rows.ring.data_bytes == rows.state.data_bytes, operation, "ring.data_bytes",
                                 rows.ring.data_bytes, "those of the state"));
  DSV4RT_RETURN_IF_ERROR(require(rows.ring.scale_bytes == rows.state.scale_bytes, operation, "ring.scale_bytes",
                                 rows.ring.scale_bytes, "those of the state"));
  return require(rows.slot_bytes >= rows.ring.scale_offset(rows.ring.rows), operation, "slot_bytes", rows.slot_bytes,
                 "the bytes of a ring or more");
}

Status check_compressor(const KeepBoundaryParams::Compressor& compressor, const BoundaryStates& states,
                        const char* operation) {
  const CompressorInput& input = compressor.input;
  const std::int64_t width = std::int64_t{input.dim} * (input.overlap ? 2 : 1);
  DSV4RT_RETURN_IF_ERROR(
      require(input.dim == kHeadDim || input.dim == kIndexHeadDim, operation, "input.dim", input.dim, "512 and 128"));
  DSV4RT_RETURN_IF_ERROR(require(input.ratio >= 1, operation, "input.ratio", input.ratio, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(
      require(input.stride >= width, operation, "input.stride", input.stride, "the row's width or more"));
  DSV4RT_RETURN_IF_ERROR(require_pointer(input.kv, operation, "input.kv"));
  DSV4RT_RETURN_IF_ERROR(require_pointer(input.score, operation, "input.score"));
  DSV4RT_RETURN_IF_ERROR(require_pointer(input.ape, operation, "input.ape"));
  DSV4RT_RETURN_IF_ERROR(check_place(compressor.rows, states, operation));
  const BlockShape& shape = compressor.rows.state;
  DSV4RT_RETURN_IF_ERROR(require(shape.data_bytes == 2 * width * static_cast<std::int64_t>(sizeof(float)), operation,
                                 "state.data_bytes", shape.data_bytes, "kv and score of the row's width"));
  return require(shape.scale_bytes == 0, operation, "state.scale_bytes", shape.scale_bytes, "0 for projections");
}

}  // namespace

Status check_boundary_copies(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                             std::span<const BoundaryRows> rows, const BoundaryStates& states) {
  constexpr const char* kName = "copy_boundary_rows";
  DSV4RT_RETURN_IF_ERROR(require(direction == BoundaryDirection::kFromRings || direction == BoundaryDirection::kToRings,
                                 kName, "direction", static_cast<std::int64_t>(direction), "kFromRings and kToRings"));
  if (copies.empty() || rows.empty()) return {};
  DSV4RT_RETURN_IF_ERROR(check_states(states, kName));
  for (const BoundaryRows& one : rows) {
    DSV4RT_RETURN_IF_ERROR(check_place(one, states, kName));
    DSV4RT_RETURN_IF_ERROR(check_ring(one, kName));
  }
  for (const BoundaryCopy& copy : copies) {
    DSV4RT_RETURN_IF_ERROR(require(copy.slot >= 0, kName, "slot", copy.slot, "0 or more"));
    DSV4RT_RETURN_IF_ERROR(require(copy.state >= 0, kName, "state", copy.state, "0 or more"));
    DSV4RT_RETURN_IF_ERROR(require(copy.boundary >= 1, kName, "boundary", copy.boundary, "1 or more"));
    DSV4RT_RETURN_IF_ERROR(
        require(copy.end >= 0 && copy.end <= copy.boundary, kName, "end", copy.end, "0 to the boundary"));
  }
  return {};
}

Status check_keep_boundary(const KeepBoundaryParams& params) {
  constexpr const char* kName = "keep_boundary_rows";
  if (params.captures.empty()) return {};
  DSV4RT_RETURN_IF_ERROR(check_states(params.states, kName));
  DSV4RT_RETURN_IF_ERROR(require_pointer(params.staged, kName, "staged"));
  DSV4RT_RETURN_IF_ERROR(check_place(params.window, params.states, kName));
  const BlockShape& staged = params.staged_shape;
  DSV4RT_RETURN_IF_ERROR(require(staged.data_bytes == params.window.state.data_bytes, kName, "staged_shape.data_bytes",
                                 staged.data_bytes, "those of the state"));
  DSV4RT_RETURN_IF_ERROR(require(staged.scale_bytes == params.window.state.scale_bytes, kName,
                                 "staged_shape.scale_bytes", staged.scale_bytes, "those of the state"));
  for (const auto& compressor : {params.compressor, params.index_compressor}) {
    if (compressor) DSV4RT_RETURN_IF_ERROR(check_compressor(*compressor, params.states, kName));
  }
  for (const BoundaryCapture& capture : params.captures) {
    DSV4RT_RETURN_IF_ERROR(require(capture.state >= 0, kName, "state", capture.state, "0 or more"));
    DSV4RT_RETURN_IF_ERROR(require(capture.first_token >= 0, kName, "first_token", capture.first_token, "0 or more"));
    DSV4RT_RETURN_IF_ERROR(require(capture.start >= 0, kName, "start", capture.start, "0 or more"));
    DSV4RT_RETURN_IF_ERROR(
        require(capture.boundary > capture.start, kName, "boundary", capture.boundary, "more than start"));
    const std::int64_t end_token = std::int64_t{capture.first_token} + capture.boundary - capture.start;
    DSV4RT_RETURN_IF_ERROR(
        require(end_token <= staged.rows, kName, "boundary", capture.boundary, "those within the staged rows"));
  }
  return {};
}

Status check_finished_rows(const FinishedRowsParams& params) {
  constexpr const char* kName = "copy_finished_rows";
  const std::int32_t tokens = params.step.counts.tokens;
  DSV4RT_RETURN_IF_ERROR(require(tokens >= 0, kName, "step.counts.tokens", tokens, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(params.ratio >= 1, kName, "ratio", params.ratio, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(params.ratio_class >= 0 && params.ratio_class < kMaxRatioClasses, kName, "ratio_class",
                                 params.ratio_class, "0 to 3"));
  DSV4RT_RETURN_IF_ERROR(require_pointer(params.rows.blocks, kName, "rows.blocks"));
  DSV4RT_RETURN_IF_ERROR(require_pointer(params.rows.block_table, kName, "rows.block_table"));
  DSV4RT_RETURN_IF_ERROR(require_pointer(params.packed, kName, "packed"));
  const BlockShape& shape = params.rows.shape;
  const BlockShape& packed = params.packed_shape;
  DSV4RT_RETURN_IF_ERROR(require(shape.rows >= 1, kName, "rows.shape.rows", shape.rows, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(packed.data_bytes == shape.data_bytes, kName, "packed_shape.data_bytes",
                                 packed.data_bytes, "those of rows.shape"));
  DSV4RT_RETURN_IF_ERROR(require(packed.scale_bytes == shape.scale_bytes, kName, "packed_shape.scale_bytes",
                                 packed.scale_bytes, "those of rows.shape"));
  // What more than one sequence takes is the caller's to know: their tokens lie in backend memory.
  return require(tokens == 0 || packed.rows >= packed_places(tokens, params.ratio, 1), kName, "packed_shape.rows",
                 packed.rows, "a place for every row that the tokens may complete");
}

Status check_table_rows(std::int32_t slot, const std::int32_t* ids, std::span<const std::int32_t> columns,
                        std::span<const CacheTable> tables) {
  constexpr const char* kName = "write_table_rows";
  DSV4RT_RETURN_IF_ERROR(require(slot >= 0, kName, "slot", slot, "0 or more"));
  DSV4RT_RETURN_IF_ERROR(require(columns.size() == tables.size(), kName, "columns.size()",
                                 static_cast<std::int64_t>(columns.size()), "one for each table"));
  for (std::size_t i = 0; i < columns.size(); ++i) {
    DSV4RT_RETURN_IF_ERROR(require(columns[i] >= 0 && columns[i] <= tables[i].stride, kName, "columns", columns[i],
                                   "0 to the entries of a table's row"));
    if (columns[i] == 0) continue;
    DSV4RT_RETURN_IF_ERROR(require_pointer(ids, kName, "ids"));
    DSV4RT_RETURN_IF_ERROR(require_pointer(tables[i].block_table, kName, "block_table"));
  }
  return {};
}

}  // namespace dsv4rt
