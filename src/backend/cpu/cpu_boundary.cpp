// Boundary states: rows that a sequence at a boundary needs, taken from its rings or from a step, and given back.
#include <algorithm>
#include <cstring>

#include "backend/boundary_state.h"
#include "backend/cpu/copy_row.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/move_checks.h"
#include "base/try.h"

namespace dsv4rt::cpu {
namespace {

std::byte* rows_in_state(const BoundaryStates& states, const BoundaryRows& rows, std::int32_t state) {
  return states.states + state * states.state_bytes + rows.state_offset;
}

void copy_between(BoundaryDirection direction, const BoundaryCopy& copy, const BoundaryRows& rows,
                  const BoundaryStates& states) {
  std::byte* const ring = rows.rings + copy.slot * rows.slot_bytes;
  std::byte* const state = rows_in_state(states, rows, copy.state);
  const std::int32_t first = copy.boundary - rows.state.rows;
  for (std::int32_t p = std::max(first, 0); p < copy.end; ++p) {
    if (direction == BoundaryDirection::kFromRings) {
      copy_row(rows.ring, ring, p % rows.ring.rows, rows.state, state, p - first);
    } else {
      copy_row(rows.state, state, p - first, rows.ring, ring, p % rows.ring.rows);
    }
  }
}

void keep_window(const KeepBoundaryParams& params, const BoundaryCapture& capture) {
  const BlockShape& shape = params.window.state;
  std::byte* const state = rows_in_state(params.states, params.window, capture.state);
  const std::int32_t first = capture.boundary - shape.rows;
  for (std::int32_t p = std::max(first, capture.start); p < capture.boundary; ++p) {
    const std::int32_t token = capture.first_token + (p - capture.start);
    copy_row(params.staged_shape, params.staged, token, shape, state, p - first);
  }
}

// Rows as state_store writes them: kv, then score + ape.
void keep_projections(const KeepBoundaryParams::Compressor& compressor, const BoundaryStates& states,
                      const BoundaryCapture& capture) {
  const CompressorInput& input = compressor.input;
  const BlockShape& shape = compressor.rows.state;
  const std::int64_t width = std::int64_t{input.dim} * (input.overlap ? 2 : 1);
  std::byte* const state = rows_in_state(states, compressor.rows, capture.state);
  const std::int32_t first = capture.boundary - shape.rows;
  for (std::int32_t p = std::max(first, capture.start); p < capture.boundary; ++p) {
    const std::int64_t token = capture.first_token + (p - capture.start);
    auto* row = reinterpret_cast<float*>(state + shape.data_offset(p - first));
    const float* score = input.score + token * input.stride;
    const float* ape = input.ape + p % input.ratio * width;
    std::memcpy(row, input.kv + token * input.stride, static_cast<std::size_t>(width) * sizeof(float));
    for (std::int64_t i = 0; i < width; ++i) row[width + i] = score[i] + ape[i];
  }
}

}  // namespace

Status CpuOps::copy_boundary_rows(BoundaryDirection direction, std::span<const BoundaryCopy> copies,
                                  std::span<const BoundaryRows> rows, const BoundaryStates& states) {
  DSV4RT_RETURN_IF_ERROR(check_boundary_copies(direction, copies, rows, states));
  const auto rings = static_cast<std::int64_t>(rows.size());
  const auto items = static_cast<std::int64_t>(copies.size()) * rings;
  return team_.parallel_for(items, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      copy_between(direction, copies[static_cast<std::size_t>(i / rings)], rows[static_cast<std::size_t>(i % rings)],
                   states);
    }
  });
}

Status CpuOps::keep_boundary_rows(const KeepBoundaryParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_keep_boundary(params));
  const auto captures = static_cast<std::int64_t>(params.captures.size());
  return team_.parallel_for(captures, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t i = begin; i < end; ++i) {
      const BoundaryCapture& capture = params.captures[static_cast<std::size_t>(i)];
      keep_window(params, capture);
      if (params.compressor) keep_projections(*params.compressor, params.states, capture);
      if (params.index_compressor) keep_projections(*params.index_compressor, params.states, capture);
    }
  });
}

}  // namespace dsv4rt::cpu
