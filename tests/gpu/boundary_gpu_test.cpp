// Boundary states and table rows: the GPU leaves the bytes that the CPU leaves.
#include <deque>

#include <gtest/gtest.h>

#include "backend/row_ops.h"
#include "gpu/support/device_step.h"
#include "gpu/support/gpu.h"
#include "unit/backend/keep_boundary_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;
using test::DeviceArray;
using test::DeviceStep;
using test::fails_with;

class BoundaryGpuTest : public test::GpuTest {
 protected:
  static Ops& ops() { return gpu().ops(); }

  // States after `work(ops, memory, states, view_of)` on the GPU.
  template <class Work>
  static std::vector<std::byte> states_after(KeepRig& rig, const Work& work) {
    const DeviceArray<std::byte> memory(gpu(), rig.memory());
    const DeviceArray<std::byte> states(gpu(), rig.states());
    std::deque<DeviceStep> steps;
    const ViewOf view_of = [&](const TestStep& step) { return steps.emplace_back(gpu(), step.view()).view(); };
    EXPECT_OK(work(gpu().row_ops(), memory.data(), states.data(), view_of));
    return states.download();
  }
};

TEST_F(BoundaryGpuTest, CopiesOfEveryFormatRingAndBoundary) {
  for (const CopyCase& of : copy_cases()) {
    for (const auto direction : {BoundaryDirection::kFromRings, BoundaryDirection::kToRings}) {
      BoundaryMemory memory(of.kinds, of.slots, of.states);
      const DeviceArray<std::byte> device(gpu(), memory.bytes());
      TestOps cpu;
      ASSERT_OK(memory.copy(*cpu, memory.bytes().data(), direction, of.copies));
      ASSERT_OK(memory.copy(ops(), device.data(), direction, of.copies));
      EXPECT_TRUE(same_bytes(device.download(), memory.bytes()))
          << of.name << " direction " << static_cast<int>(direction);
    }
  }
}

// A ring through a state into another slot's ring, one call after the other in stream order.
TEST_F(BoundaryGpuTest, CallsFollowEachOther) {
  for (const RowFormat format : kBoundaryFormats) {
    BoundaryMemory memory({window_ring(format, 128, 3), state_ring(kHeadDim, 3)}, 3, 2);
    const DeviceArray<std::byte> device(gpu(), memory.bytes());
    const BoundaryCopy taken{.slot = 2, .state = 1, .boundary = 640, .end = 640};
    const BoundaryCopy given{.slot = 0, .state = 1, .boundary = 640, .end = 640};
    memory.copy_bytes(BoundaryDirection::kFromRings, std::span(&taken, 1));
    memory.copy_bytes(BoundaryDirection::kToRings, std::span(&given, 1));
    ASSERT_OK(memory.copy(ops(), device.data(), BoundaryDirection::kFromRings, std::span(&taken, 1)));
    ASSERT_OK(memory.copy(ops(), device.data(), BoundaryDirection::kToRings, std::span(&given, 1)));
    EXPECT_TRUE(same_bytes(device.download(), memory.bytes())) << row_format_name(format);
  }
}

TEST_F(BoundaryGpuTest, StepsKeepTheirBoundaries) {
  for (const KeepCase& of : keep_cases()) {
    KeepRig host(of);
    KeepRig device(of);
    TestOps cpu;
    const ViewOf host_view = [](const TestStep& step) { return step.view(); };
    const auto kept =
        states_after(device, [&](RowOps& gpu_ops, std::byte* memory, std::byte* states, const ViewOf& view_of) {
          return device.keep(gpu_ops, memory, states, view_of);
        });
    const auto cut =
        states_after(device, [&](RowOps& gpu_ops, std::byte* memory, std::byte* states, const ViewOf& view_of) {
          return device.cut(gpu_ops, memory, states, view_of);
        });
    ASSERT_OK(host.keep(*cpu, host.memory().data(), host.states().data(), host_view));
    EXPECT_TRUE(same_bytes(kept, cut)) << of.name << ", one step against steps that end at the boundaries";
    EXPECT_TRUE(same_bytes(kept, host.states())) << of.name << ", against the CPU";
  }
}

TEST_F(BoundaryGpuTest, TableRows) {
  for (const TableMemory& of : table_cases()) {
    for (std::int32_t slot = 0; slot < TableMemory::kSlots; ++slot) {
      TableMemory expected = of;
      const DeviceArray<std::int32_t> device(gpu(), expected.entries());
      ASSERT_OK(of.write(ops(), device.data(), slot));
      expected.write_entries(slot);
      EXPECT_EQ(device.download(), expected.entries()) << of.columns().size() << " tables, slot " << slot;
    }
  }
}

TEST_F(BoundaryGpuTest, RefusalsNameFieldAndValue) {
  BoundaryMemory memory({window_ring(RowFormat::kFp8Row, 16, 3)}, 1, 1);
  const DeviceArray<std::byte> device(gpu(), memory.bytes());
  const BoundaryCopy copy{.slot = 0, .state = 0, .boundary = 16, .end = 17};
  EXPECT_TRUE(fails_with(memory.copy(ops(), device.data(), BoundaryDirection::kToRings, std::span(&copy, 1)),
                         StatusCode::kInvalidArgument, {"copy_boundary_rows", "end = 17"}));
  EXPECT_TRUE(fails_with(ops().write_table_rows(-1, nullptr, {}, {}), StatusCode::kInvalidArgument,
                         {"write_table_rows", "slot = -1"}));

  KeepRig rig({.name = "",
               .layer = {.kind = LayerKind::kCsa, .heads = 1, .index_heads = 1},
               .window_rows = kRowsWindow,
               .parts = {{0, 8, 40}},
               .kept = {{0, 32, 0}}});
  const std::vector<std::byte> before = rig.states();
  const auto refused = [&](const auto& change, const char* field) {
    const auto after =
        states_after(rig, [&](RowOps& gpu_ops, std::byte* base, std::byte* states, const ViewOf& view_of) -> Status {
          const BoundaryCapture capture{.first_token = 0, .start = 8, .boundary = 32, .state = 0};
          KeepBoundaryParams params = rig.params(rig.step_params(base, view_of), states, std::span(&capture, 1));
          change(params);
          EXPECT_TRUE(fails_with(gpu_ops.keep_boundary_rows(params), StatusCode::kInvalidArgument,
                                 {"keep_boundary_rows", field}));
          return {};
        });
    EXPECT_TRUE(same_bytes(after, before)) << field;
  };
  refused([](KeepBoundaryParams& p) { p.staged = nullptr; }, "staged is null");
  refused([](KeepBoundaryParams& p) { p.compressor->input.stride += 1; }, "input.stride = 1025");
  refused([](KeepBoundaryParams& p) { p.compressor->input.kv += 1; }, "input.kv is misaligned");
  refused([](KeepBoundaryParams& p) { p.index_compressor->input.score += 2; }, "input.score is misaligned");
  refused([](KeepBoundaryParams& p) { p.index_compressor->input.ape += 3; }, "input.ape is misaligned");
  refused([](KeepBoundaryParams& p) { p.states.states += 8; }, "states.states is misaligned");
}

}  // namespace
}  // namespace dsv4rt
