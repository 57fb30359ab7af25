// write_kv against the operations it stands for, and the rule by which rings may be written early.
#include <gtest/gtest.h>

#include "unit/backend/rows_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

TEST(WriteKv, LeavesTheBytesOfTheSingleOperations) {
  for (const LayerKind kind : {LayerKind::kSwa, LayerKind::kCsa, LayerKind::kHca}) {
    const RowsLayer layer{.kind = kind};
    const TestStep step({{2, 127, 1}, {0, 0, 130}, {1, 3, 5}, {3, 254, 3}}, 2, layer.ratios());
    const RowsMemory before(layer, step.tokens(), 4, step.view().counts.context_end, 1);
    TestOps ops;
    RowsMemory together = before;
    ASSERT_TRUE(ops->write_kv(together.params(step.view(), together.bytes().data())).ok());
    RowsMemory single = before;
    TestOps single_ops(1);
    ASSERT_TRUE(write_kv_one_by_one(*single_ops.operator->(), single.params(step.view(), single.bytes().data())).ok());
    EXPECT_EQ(together.difference(single), "");
    EXPECT_NE(together.difference(before), "");
  }
}

TEST(WriteKv, PiecesOfTheTokensLeaveTheBytesOfTheWhole) {
  for (const LayerKind kind : {LayerKind::kSwa, LayerKind::kCsa, LayerKind::kHca}) {
    for (const RowFormat format : {RowFormat::kFp8DsMla, RowFormat::kNvfp4}) {
      const RowsLayer layer{.kind = kind, .row_format = format};
      const TestStep step({{2, 127, 1}, {0, 0, 130}, {1, 3, 5}, {3, 120, 260}}, 3, layer.ratios());
      const RowsMemory before(layer, step.tokens(), 4, step.view().counts.context_end, 4);
      TestOps ops;
      RowsMemory whole = before;
      ASSERT_TRUE(ops->write_kv(whole.params(step.view(), whole.bytes().data())).ok());
      RowsMemory pieces = before;
      ASSERT_TRUE(write_kv_in_pieces(*ops, pieces.params(step.view(), pieces.bytes().data()),
                                     {0, 1, 48, 133, 134, 390, step.tokens()})
                      .ok());
      EXPECT_EQ(pieces.difference(whole), "");
    }
  }
}

TEST(WriteKv, WithoutARingWindowRowsAreOnlyStaged) {
  const RowsLayer layer{.kind = LayerKind::kSwa};
  const TestStep step({{0, 5, 3}});
  const RowsMemory before(layer, step.tokens(), 1, 8, 2);
  TestOps ops;
  RowsMemory staged = before;
  WriteKvParams params = staged.params(step.view(), staged.bytes().data());
  const std::optional<SwaRing> ring = std::exchange(params.swa_ring, std::nullopt);
  ASSERT_TRUE(ops->write_kv(params).ok());
  const auto ring_bytes = [&](const std::vector<std::byte>& memory) {
    const auto first = memory.begin() + (ring->base - staged.bytes().data());
    return std::vector<std::byte>(first, first + staged.ring_slot_bytes());
  };
  RowsMemory untouched = before;
  EXPECT_TRUE(same_bytes(ring_bytes(staged.bytes()), ring_bytes(untouched.bytes())));
}

// The rule for a state ring is exact: within it the projections may enter the ring before blocks are pooled from it,
// and one token more changes a row.
TEST(RingKeepsNeededRows, StateRingsOfBothCompressors) {
  for (const LayerKind kind : {LayerKind::kCsa, LayerKind::kHca}) {
    const std::int32_t ratio = kind == LayerKind::kCsa ? 4 : 128;
    const std::int32_t pooled = kind == LayerKind::kCsa ? 8 : 128;
    for (const std::int32_t draft : {0, 1, 4}) {
      const RowsLayer layer{.kind = kind, .heads = 1, .index_heads = 1, .draft_budget = draft};
      for (const std::int32_t width : {1, draft + 1, draft + 2}) {
        bool any_difference = false;
        // The first token of the step completes a block, or one of the others does.
        for (std::int32_t before_end = 1; before_end <= std::min(4, ratio); ++before_end) {
          const std::int32_t start = 3 * ratio - before_end;
          const TestStep step({{0, start, width}}, 0, layer.ratios());
          const RowsMemory memory(layer, width, 1, start + width, 3);
          TestOps ops;
          RowsMemory late = memory;
          const WriteKvParams late_params = late.params(step.view(), late.bytes().data());
          RowsMemory early = memory;
          const WriteKvParams early_params = early.params(step.view(), early.bytes().data());
          const CompressParams& one = *late_params.compress;
          ASSERT_TRUE(ops->compress(one).ok());
          ASSERT_TRUE(ops->state_store({one.step, one.input, one.state}).ok());
          const CompressParams& other = *early_params.compress;
          ASSERT_TRUE(ops->state_store({other.step, other.input, other.state}).ok());
          ASSERT_TRUE(ops->compress(other).ok());
          const bool same = early.difference(late).empty();
          any_difference = any_difference || !same;
          if (ring_keeps_needed_rows(pooled + draft, pooled, step.view().counts)) {
            EXPECT_TRUE(same) << "draft " << draft << " width " << width << " start " << start;
          }
        }
        EXPECT_EQ(any_difference, width > draft + 1) << "ratio " << ratio << " draft " << draft << " width " << width;
      }
    }
  }
}

// The same for the window ring and attend.
TEST(RingKeepsNeededRows, SwaRing) {
  for (const std::int32_t draft : {0, 1, 4}) {
    const RowsLayer layer{.kind = LayerKind::kSwa, .heads = 2, .row_format = RowFormat::kBf16, .draft_budget = draft};
    for (const std::int32_t width : {1, draft + 1, draft + 2}) {
      const std::int32_t start = 3 * kRowsWindow + 5;
      RowsMemory memory(layer, std::max(width, start), 1, start + width, 5);
      TestOps ops;
      // Finite rows in the ring.
      const TestStep first({{0, 0, start}});
      ASSERT_TRUE(ops->write_kv(memory.params(first.view(), memory.bytes().data())).ok());

      const TestStep step({{0, start, width}});
      const std::vector<float> sink(2, 0.5F);
      const auto attend = [&](RowsMemory& cache, bool early) {
        WriteKvParams params = cache.params(step.view(), cache.bytes().data());
        const SwaRing ring = *params.swa_ring;
        if (!early) params.swa_ring.reset();
        EXPECT_TRUE(ops->write_kv(params).ok());
        std::vector<bf16> o(static_cast<std::size_t>(width * 2 * kHeadDim));
        AttendParams read;
        read.step = step.view();
        read.heads = 2;
        read.window = kRowsWindow;
        read.q = params.query->q;
        read.sink = sink.data();
        read.ring = ring;
        read.staged_shape = params.window.staged_shape;
        read.staged = params.window.staged;
        read.row_format = layer.row_format;
        read.o = o.data();
        EXPECT_TRUE(ops->attend(read).ok());
        return o;
      };
      RowsMemory late = memory;
      RowsMemory early = memory;
      const bool keeps = ring_keeps_needed_rows(kRowsWindow + draft, kRowsWindow, step.view().counts);
      EXPECT_EQ(keeps, width <= draft + 1);
      EXPECT_EQ(same_bytes(attend(early, true), attend(late, false)), keeps) << "draft " << draft << " width " << width;
    }
  }
}

}  // namespace
}  // namespace dsv4rt
