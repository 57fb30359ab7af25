// A step of a layer whose boundaries are kept, and the same tokens in steps that end at the boundaries, for the tests
// of keep_boundary_rows on any backend.
#pragma once

#include "unit/backend/boundary_fixture.h"

namespace dsv4rt::test {

// Boundary `boundary` of the sequence of parts[part] goes into state `state`.
struct KeptBoundary {
  std::size_t part = 0;
  std::int32_t boundary = 0;
  std::int32_t state = 0;
};

struct KeepCase {
  std::string name;
  RowsLayer layer;
  std::int32_t window_rows = kRowsWindow;  // in a state
  std::vector<Part> parts;
  std::vector<KeptBoundary> kept;  // those of a part ascending
};

// The view of a step on the backend under test, valid until the test ends.
using ViewOf = std::function<StepView(const TestStep&)>;

class KeepRig {
 public:
  static constexpr std::int32_t kPadding = 1;

  explicit KeepRig(const KeepCase& of)
      : of_(of),
        step_(of.parts, kPadding, of.layer.ratios()),
        memory_(of.layer, step_.tokens(), slots(of), step_.view().counts.context_end, 17) {
    window_ = block_shape(of.layer.row_format, of.window_rows);
    state_offset_ = aligned(window_.block_bytes) + 256;
    index_offset_ = state_offset_ + aligned(projection_rows(kKeptStateRows, 2 * kHeadDim).block_bytes) + 256;
    state_bytes_ = index_offset_ + aligned(projection_rows(kKeptStateRows, 2 * kIndexHeadDim).block_bytes) + 256;
    std::int32_t states = 0;
    for (const KeptBoundary& kept : of.kept) states = std::max(states, kept.state + 1);
    states_ = poisoned(static_cast<std::size_t>(states * state_bytes_), 18);
  }

  [[nodiscard]] std::vector<std::byte>& memory() { return memory_.bytes(); }
  [[nodiscard]] std::vector<std::byte>& states() { return states_; }

  // One step: rows before it from the rings, fresh ones from the layer's inputs.
  Status keep(RowOps& ops, std::byte* base, std::byte* states, const ViewOf& view_of) const {
    const WriteKvParams p = memory_.params(view_of(step_), base);
    std::vector<BoundaryCopy> copies;
    std::vector<BoundaryCapture> captures;
    for (const KeptBoundary& kept : of_.kept) {
      const Part& part = of_.parts[kept.part];
      copies.push_back({.slot = part.slot, .state = kept.state, .boundary = kept.boundary, .end = part.start});
      captures.push_back(
          {.first_token = first_token(kept.part), .start = part.start, .boundary = kept.boundary, .state = kept.state});
    }
    DSV4RT_RETURN_IF_ERROR(ops.copy_boundary_rows(BoundaryDirection::kFromRings, copies, rings(p), at(states)));
    DSV4RT_RETURN_IF_ERROR(ops.write_kv(p));
    return ops.keep_boundary_rows(params(p, states, captures));
  }

  // A step up to every boundary; the rings then hold what its state needs.
  Status cut(RowOps& ops, std::byte* base, std::byte* states, const ViewOf& view_of) const {
    std::vector<std::int32_t> position;
    for (const Part& part : of_.parts) position.push_back(part.start);
    for (const KeptBoundary& kept : of_.kept) {
      const Part& part = of_.parts[kept.part];
      std::int32_t& start = position[kept.part];
      const TestStep step({{part.slot, start, kept.boundary - start}}, 0, of_.layer.ratios());
      const WriteKvParams p = memory_.params(view_of(step), base, first_token(kept.part) + start - part.start);
      DSV4RT_RETURN_IF_ERROR(ops.write_kv(p));
      const BoundaryCopy copy{.slot = part.slot, .state = kept.state, .boundary = kept.boundary, .end = kept.boundary};
      DSV4RT_RETURN_IF_ERROR(
          ops.copy_boundary_rows(BoundaryDirection::kFromRings, std::span(&copy, 1), rings(p), at(states)));
      start = kept.boundary;
    }
    return {};
  }

  // The call over a step's parameters.
  [[nodiscard]] KeepBoundaryParams params(const WriteKvParams& p, std::byte* states,
                                          std::span<const BoundaryCapture> captures) const {
    const std::vector<BoundaryRows> rows = rings(p);
    KeepBoundaryParams keep{.captures = captures,
                            .states = at(states),
                            .staged_shape = p.window.staged_shape,
                            .staged = p.window.staged,
                            .window = rows[0],
                            .compressor = {},
                            .index_compressor = {}};
    if (rows.size() == 3) {
      keep.compressor = {.input = p.compress->input, .rows = rows[1]};
      keep.index_compressor = {.input = p.index_compress->input, .rows = rows[2]};
    }
    return keep;
  }
  [[nodiscard]] WriteKvParams step_params(std::byte* base, const ViewOf& view_of) const {
    return memory_.params(view_of(step_), base);
  }

 private:
  static std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }
  static std::int32_t slots(const KeepCase& of) {
    std::int32_t slots = 0;
    for (const Part& part : of.parts) slots = std::max(slots, part.slot + 1);
    return slots;
  }
  [[nodiscard]] BoundaryStates at(std::byte* states) const { return {states, state_bytes_}; }
  [[nodiscard]] std::int32_t first_token(std::size_t part) const {
    std::int32_t token = 0;
    for (std::size_t i = 0; i < part; ++i) token += of_.parts[i].count;
    return token;
  }
  // Window, then the overlapping compressors.
  [[nodiscard]] std::vector<BoundaryRows> rings(const WriteKvParams& p) const {
    std::vector<BoundaryRows> rows = {{.rings = p.swa_ring->base,
                                       .slot_bytes = p.swa_ring->slot_bytes,
                                       .ring = p.swa_ring->shape,
                                       .state_offset = 0,
                                       .state = window_}};
    if (of_.layer.kind != LayerKind::kCsa) return rows;
    rows.push_back(projections(*p.compress, state_offset_));
    rows.push_back(projections(*p.index_compress, index_offset_));
    return rows;
  }
  static BoundaryRows projections(const CompressParams& p, std::int64_t offset) {
    return {.rings = p.state.base,
            .slot_bytes = p.state.slot_bytes,
            .ring = projection_rows(p.state.ring_rows, 2 * p.input.dim),
            .state_offset = offset,
            .state = projection_rows(kKeptStateRows, 2 * p.input.dim)};
  }

  KeepCase of_;
  TestStep step_;
  RowsMemory memory_;
  BlockShape window_;
  std::int64_t state_offset_ = 0, index_offset_ = 0, state_bytes_ = 0;
  std::vector<std::byte> states_;
};

inline std::vector<KeepCase> keep_cases() {
  std::vector<KeepCase> cases;
  for (const LayerKind kind : {LayerKind::kSwa, LayerKind::kCsa, LayerKind::kHca}) {
    for (const RowFormat format : kBoundaryFormats) {
      const RowsLayer layer{.kind = kind, .heads = 1, .index_heads = 1, .row_format = format};
      RowsLayer drafts = layer;
      drafts.draft_budget = 3;
      RowsLayer wide = layer;
      wide.draft_budget = 115;
      const std::string name = std::string(row_format_name(format)) + " kind " + std::to_string(static_cast<int>(kind));
      cases.push_back({name + ", from the first token", drafts, kRowsWindow, {{1, 0, 40}}, {{0, 8, 0}, {0, 32, 1}}});
      cases.push_back({name + ", fresh rows only", layer, kRowsWindow, {{0, 100, 200}}, {{0, 128, 1}, {0, 256, 0}}});
      // Part of the rows are older than the step; one boundary is a few tokens after its start, one at its end.
      cases.push_back({name + ", rows before the step",
                       drafts,
                       kRowsWindow,
                       {{2, 126, 5}, {0, 254, 20}, {1, 383, 1}},
                       {{0, 128, 3}, {1, 256, 1}, {1, 274, 0}, {2, 384, 2}}});
      cases.push_back({name + ", a window of 128 rows", wide, 128, {{0, 90, 300}}, {{0, 128, 0}, {0, 384, 2}}});
    }
  }
  KeepCase many{
      "150 captures", {.kind = LayerKind::kCsa, .heads = 1, .index_heads = 1}, kRowsWindow, {{0, 3, 600}}, {}};
  for (std::int32_t i = 0; i < 150; ++i) many.kept.push_back({0, 4 * (i + 1), i});
  cases.push_back(many);
  return cases;
}

}  // namespace dsv4rt::test
