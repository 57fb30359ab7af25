// copy_boundary_rows and keep_boundary_rows: boundary states from rings and from steps, and back into rings.
#include <gtest/gtest.h>

#include "support/expect_ok.h"
#include "unit/backend/keep_boundary_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;
using test::fails_with;

TEST(CopyBoundaryRows, ExactlyTheRowsOfEveryFormatRingAndBoundary) {
  for (const CopyCase& of : copy_cases()) {
    for (const auto direction : {BoundaryDirection::kFromRings, BoundaryDirection::kToRings}) {
      BoundaryMemory memory(of.kinds, of.slots, of.states);
      BoundaryMemory expected = memory;
      TestOps ops(3);
      ASSERT_OK(memory.copy(*ops, memory.bytes().data(), direction, of.copies));
      expected.copy_bytes(direction, of.copies);
      EXPECT_TRUE(same_bytes(memory.bytes(), expected.bytes()))
          << of.name << " direction " << static_cast<int>(direction);
    }
  }
}

// A sequence that continues from a state has, in the rows of the positions before the boundary, what the ring held
// that the state was taken from.
TEST(CopyBoundaryRows, ARingThroughAStateIsTheSameRing) {
  constexpr std::int32_t kBoundary = 128 * 5;
  for (const RowFormat format : kBoundaryFormats) {
    const RingKind window = window_ring(format, 128, 3);
    BoundaryMemory memory({window, state_ring(kHeadDim, 3)}, 3, 2);
    const BoundaryMemory before = memory;
    std::byte* const base = memory.bytes().data();
    TestOps ops;
    const BoundaryCopy taken{.slot = 2, .state = 1, .boundary = kBoundary, .end = kBoundary};
    const BoundaryCopy given{.slot = 0, .state = 1, .boundary = kBoundary, .end = kBoundary};
    ASSERT_OK(memory.copy(*ops, base, BoundaryDirection::kFromRings, std::span(&taken, 1)));
    ASSERT_OK(memory.copy(*ops, base, BoundaryDirection::kToRings, std::span(&given, 1)));
    for (const BoundaryRows& rows : memory.rows(base)) {
      const std::byte* const old_slot = before.bytes().data() + (rows.rings - base);
      for (std::int32_t p = kBoundary - rows.ring.rows; p < kBoundary; ++p) {
        const std::int32_t row = p % rows.ring.rows;
        const std::byte* const from = p < kBoundary - rows.state.rows ? old_slot : rows.rings + 2 * rows.slot_bytes;
        for (const auto& [offset, count] : {std::pair(rows.ring.data_offset(row), rows.ring.data_bytes),
                                            std::pair(rows.ring.scale_offset(row), rows.ring.scale_bytes)}) {
          EXPECT_EQ(std::memcmp(rows.rings + offset, from + offset, static_cast<std::size_t>(count)), 0)
              << row_format_name(format) << " position " << p;
        }
      }
      EXPECT_EQ(std::memcmp(rows.rings + rows.slot_bytes, old_slot + rows.slot_bytes,
                            static_cast<std::size_t>(2 * rows.slot_bytes)),
                0);
    }
  }
}

TEST(CopyBoundaryRows, NothingToCopyIsNothing) {
  BoundaryMemory memory({window_ring(RowFormat::kBf16, 16, 0)}, 1, 1);
  const BoundaryMemory before = memory;
  TestOps ops;
  const auto rows = memory.rows(memory.bytes().data());
  ASSERT_OK(ops->copy_boundary_rows(BoundaryDirection::kToRings, {}, rows, {}));
  const BoundaryCopy copy{.slot = 0, .state = 0, .boundary = 16, .end = 16};
  ASSERT_OK(ops->copy_boundary_rows(BoundaryDirection::kToRings, std::span(&copy, 1), {}, {}));
  EXPECT_TRUE(same_bytes(memory.bytes(), before.bytes()));
}

TEST(CopyBoundaryRows, RefusesBeforeAnyChangeAndNamesTheField) {
  BoundaryMemory memory({window_ring(RowFormat::kFp8Row, 16, 3), state_ring(kIndexHeadDim, 0)}, 2, 2);
  const BoundaryMemory before = memory;
  std::byte* const base = memory.bytes().data();
  TestOps ops;
  const BoundaryCopy good{.slot = 1, .state = 1, .boundary = 16, .end = 16};
  const auto refused = [&](const auto& change, const char* field) {
    std::vector<BoundaryRows> rows = memory.rows(base);
    BoundaryStates states = memory.states(base);
    // The first copy is a good one.
    std::vector<BoundaryCopy> copies = {{.slot = 0, .state = 0, .boundary = 16, .end = 16}, good};
    BoundaryDirection direction = BoundaryDirection::kFromRings;
    change(direction, copies[1], rows[1], states);
    EXPECT_TRUE(fails_with(ops->copy_boundary_rows(direction, copies, rows, states), StatusCode::kInvalidArgument,
                           {"copy_boundary_rows", field}));
    EXPECT_TRUE(same_bytes(memory.bytes(), before.bytes())) << field;
  };
  using Direction = BoundaryDirection;
  using Copy = BoundaryCopy;
  using Rows = BoundaryRows;
  using States = BoundaryStates;
  refused([](Direction& d, Copy&, Rows&, States&) { d = static_cast<Direction>(2); }, "direction = 2");
  refused([](Direction&, Copy& c, Rows&, States&) { c.slot = -1; }, "slot = -1");
  refused([](Direction&, Copy& c, Rows&, States&) { c.state = -1; }, "state = -1");
  refused([](Direction&, Copy& c, Rows&, States&) { c.boundary = 0; }, "boundary = 0");
  refused([](Direction&, Copy& c, Rows&, States&) { c.end = 17; }, "end = 17");
  refused([](Direction&, Copy& c, Rows&, States&) { c.end = -1; }, "end = -1");
  refused([](Direction&, Copy&, Rows& r, States&) { r.rings = nullptr; }, "rings is null");
  refused([](Direction&, Copy&, Rows& r, States&) { r.state.rows = 0; }, "state.rows = 0");
  refused([](Direction&, Copy&, Rows& r, States&) { r.ring.rows = 3; }, "ring.rows = 3");
  refused([](Direction&, Copy&, Rows& r, States&) { r.state.data_bytes = 0; }, "state.data_bytes = 0");
  refused([](Direction&, Copy&, Rows& r, States&) { r.state.scale_bytes = -1; }, "state.scale_bytes = -1");
  refused([](Direction&, Copy&, Rows& r, States&) { r.ring.data_bytes -= 16; }, "ring.data_bytes = ");
  refused([](Direction&, Copy&, Rows& r, States&) { r.ring.scale_bytes = 4; }, "ring.scale_bytes = 4");
  refused([](Direction&, Copy&, Rows& r, States&) { r.slot_bytes = 100; }, "slot_bytes = 100");
  refused([](Direction&, Copy&, Rows& r, States&) { r.state_offset += 16; }, "state_offset = ");
  refused([](Direction&, Copy&, Rows& r, States& s) { r.state_offset = s.state_bytes; }, "state_offset = ");
  refused([](Direction&, Copy&, Rows&, States& s) { s.states = nullptr; }, "states.states is null");
  refused([](Direction&, Copy&, Rows&, States& s) { s.state_bytes += 128; }, "states.state_bytes = ");
  refused([](Direction&, Copy&, Rows&, States& s) { s.state_bytes = 0; }, "states.state_bytes = 0");
}

StepView host_view(const TestStep& step) {
  return step.view();
}

TEST(KeepBoundaryRows, AStepKeepsWhatRingsHoldAfterAStepThatEndsThere) {
  for (const KeepCase& of : keep_cases()) {
    KeepRig kept(of);
    KeepRig expected(of);
    const std::vector<std::byte> before = kept.states();
    TestOps ops(3);
    ASSERT_OK(kept.keep(*ops, kept.memory().data(), kept.states().data(), host_view));
    ASSERT_OK(expected.cut(*ops, expected.memory().data(), expected.states().data(), host_view));
    EXPECT_TRUE(same_bytes(kept.states(), expected.states())) << of.name;
    EXPECT_FALSE(same_bytes(kept.states(), before)) << of.name;
  }
}

TEST(KeepBoundaryRows, RefusesBeforeAnyChangeAndNamesTheField) {
  KeepRig rig({.name = "",
               .layer = {.kind = LayerKind::kCsa, .heads = 1, .index_heads = 1},
               .window_rows = kRowsWindow,
               .parts = {{0, 8, 40}},
               .kept = {{0, 16, 0}, {0, 32, 1}}});
  const std::vector<std::byte> before = rig.states();
  const WriteKvParams step = rig.step_params(rig.memory().data(), host_view);
  TestOps ops;
  ASSERT_OK(ops->write_kv(step));
  const auto refused = [&](const auto& change, const char* field) {
    std::vector<BoundaryCapture> captures = {{.first_token = 0, .start = 8, .boundary = 16, .state = 0},
                                             {.first_token = 0, .start = 8, .boundary = 32, .state = 1}};
    KeepBoundaryParams params = rig.params(step, rig.states().data(), captures);
    change(params, captures[1]);
    EXPECT_TRUE(
        fails_with(ops->keep_boundary_rows(params), StatusCode::kInvalidArgument, {"keep_boundary_rows", field}));
    EXPECT_TRUE(same_bytes(rig.states(), before)) << field;
  };
  using Params = KeepBoundaryParams;
  using Capture = BoundaryCapture;
  refused([](Params&, Capture& c) { c.state = -1; }, "state = -1");
  refused([](Params&, Capture& c) { c.first_token = -1; }, "first_token = -1");
  refused([](Params&, Capture& c) { c.start = -1; }, "start = -1");
  refused([](Params&, Capture& c) { c.boundary = 8; }, "boundary = 8");
  // 40 tokens and one of padding are staged.
  refused([](Params&, Capture& c) { c.boundary = 50; }, "boundary = 50");
  refused([](Params& p, Capture&) { p.staged = nullptr; }, "staged is null");
  refused([](Params& p, Capture&) { p.staged_shape.data_bytes += 16; }, "staged_shape.data_bytes = ");
  refused([](Params& p, Capture&) { p.staged_shape.scale_bytes += 1; }, "staged_shape.scale_bytes = ");
  refused([](Params& p, Capture&) { p.states.states = nullptr; }, "states.states is null");
  refused([](Params& p, Capture&) { p.window.state.rows = 0; }, "state.rows = 0");
  refused([](Params& p, Capture&) { p.compressor->input.dim = 256; }, "input.dim = 256");
  refused([](Params& p, Capture&) { p.compressor->input.ratio = 0; }, "input.ratio = 0");
  refused([](Params& p, Capture&) { p.compressor->input.stride = 1023; }, "input.stride = 1023");
  refused([](Params& p, Capture&) { p.compressor->input.kv = nullptr; }, "input.kv is null");
  refused([](Params& p, Capture&) { p.compressor->input.score = nullptr; }, "input.score is null");
  refused([](Params& p, Capture&) { p.index_compressor->input.ape = nullptr; }, "input.ape is null");
  refused([](Params& p, Capture&) { p.index_compressor->input.overlap = false; }, "state.data_bytes = ");
  refused([](Params& p, Capture&) { p.index_compressor->rows.state.scale_bytes = 4; }, "state.scale_bytes = 4");
  refused([](Params& p, Capture&) { p.index_compressor->rows.state_offset = p.states.state_bytes; }, "state_offset = ");

  KeepBoundaryParams nothing;
  EXPECT_OK(ops->keep_boundary_rows(nothing));
}

}  // namespace
}  // namespace dsv4rt
