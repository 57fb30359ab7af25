// copy_finished_rows: exactly the rows that the tokens completed, out of the cache and into another one.
#include <set>

#include <gtest/gtest.h>

#include "support/expect_ok.h"
#include "unit/backend/finished_rows_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

TEST(CopyFinishedRows, ExactlyTheRowsOfEveryFormat) {
  for (const FinishedCase& of : finished_cases()) {
    for (const auto direction : {RowDirection::kFromCache, RowDirection::kToCache}) {
      FinishedMemory memory(of, 3);
      FinishedMemory expected = memory;
      TestOps ops(3);
      ASSERT_OK(ops->copy_finished_rows(direction, memory.params(memory.step().view(), memory.pool().data(),
                                                                 memory.table().data(), memory.packed().data())));
      expected.copy_rows(direction);
      EXPECT_TRUE(same_bytes(memory.pool(), expected.pool())) << of.name << ", " << static_cast<int>(direction);
      EXPECT_TRUE(same_bytes(memory.packed(), expected.packed())) << of.name << ", " << static_cast<int>(direction);
    }
  }
}

// However sequences lie in the tokens and wherever they stand: no two rows have a place, and places are enough.
TEST(CopyFinishedRows, EveryRowHasAPlaceOfItsOwn) {
  Random random(5);
  const auto pick = [&](std::int32_t from, std::int32_t to) {
    return from + static_cast<std::int32_t>(random.bits() % static_cast<std::uint64_t>(to - from + 1));
  };
  for (int trial = 0; trial < 2000; ++trial) {
    const std::int32_t ratio = std::array{1, 2, 4, 128}[static_cast<std::size_t>(pick(0, 3))];
    const std::int32_t sequences = pick(1, 6);
    std::set<std::int32_t> places;
    std::int32_t token = 0;
    std::int32_t rows = 0;
    for (std::int32_t sequence = 9; sequence < 9 + sequences; ++sequence) {
      const std::int32_t start = pick(0, 300);
      const std::int32_t count = pick(1, 3 * ratio);
      for (std::int32_t position = start; position < start + count; ++position, ++token) {
        if ((position + 1) % ratio != 0) continue;
        places.insert(packed_place(token, ratio, sequence, 9));
        ++rows;
      }
    }
    ASSERT_EQ(static_cast<std::int32_t>(places.size()), rows);
    if (rows == 0) continue;
    ASSERT_GE(*places.begin(), 0);
    ASSERT_LT(*places.rbegin(), packed_places(token, ratio, sequences));
  }
}

TEST(CopyFinishedRows, RefusalsNameFieldAndValue) {
  const FinishedCase of = finished_cases().front();
  FinishedMemory memory(of, 4);
  const std::vector<std::byte> before = memory.pool();
  TestOps ops;
  const auto refused = [&](const auto& change, const char* text) {
    FinishedRowsParams params =
        memory.params(memory.step().view(), memory.pool().data(), memory.table().data(), memory.packed().data());
    change(params);
    EXPECT_TRUE(fails_with(ops->copy_finished_rows(RowDirection::kToCache, params), StatusCode::kInvalidArgument,
                           {"copy_finished_rows", text}));
  };
  refused([](FinishedRowsParams& p) { p.ratio = 0; }, "ratio = 0");
  refused([](FinishedRowsParams& p) { p.ratio_class = 4; }, "ratio_class = 4");
  refused([](FinishedRowsParams& p) { p.step.counts.tokens = -1; }, "step.counts.tokens = -1");
  refused([](FinishedRowsParams& p) { p.rows.blocks = nullptr; }, "rows.blocks is null");
  refused([](FinishedRowsParams& p) { p.rows.block_table = nullptr; }, "rows.block_table is null");
  refused([](FinishedRowsParams& p) { p.packed = nullptr; }, "packed is null");
  refused([](FinishedRowsParams& p) { p.rows.shape.rows = 0; }, "rows.shape.rows = 0");
  refused([](FinishedRowsParams& p) { p.packed_shape.rows = 100; }, "packed_shape.rows = 100");
  refused([](FinishedRowsParams& p) { p.packed_shape.data_bytes = 1; }, "packed_shape.data_bytes = 1");
  refused([](FinishedRowsParams& p) { p.packed_shape.scale_bytes = 1; }, "packed_shape.scale_bytes = 1");
  EXPECT_TRUE(same_bytes(memory.pool(), before));
}

}  // namespace
}  // namespace dsv4rt
