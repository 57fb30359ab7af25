// begin_step, copy_slot and write_table_rows.
#include <array>

#include <gtest/gtest.h>

#include "support/expect_ok.h"
#include "unit/backend/boundary_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

constexpr std::int64_t kBlockBytes = 96;

struct Pools {
  Pools() : blocks{poisoned(8 * kBlockBytes, 1), poisoned(8 * kBlockBytes, 2)} {
    for (int t = 0; t < 2; ++t) {
      tables[static_cast<std::size_t>(t)].assign(12, -7);
      views[static_cast<std::size_t>(t)] = {.block_table = tables[static_cast<std::size_t>(t)].data(),
                                            .stride = 4,
                                            .blocks = blocks[static_cast<std::size_t>(t)].data(),
                                            .block_bytes = kBlockBytes};
    }
  }
  std::array<std::vector<std::byte>, 2> blocks;
  std::array<std::vector<std::int32_t>, 2> tables;
  std::array<CacheTable, 2> views;
};

TEST(BeginStep, AppliesDeltasThenCopiesAndNothingElse) {
  Pools pools;
  const auto before = pools.blocks;
  TestStep step({});
  step.deltas = {{.table = 1, .slot = 2, .index = 3, .block = 5}, {.table = 0, .slot = 0, .index = 1, .block = 4}};
  // The second copy reads what the first wrote.
  step.copies = {{.table = 1, .source = 2, .target = 5, .reserved = 0},
                 {.table = 1, .source = 5, .target = 6, .reserved = 0}};
  TestOps ops;
  ASSERT_TRUE(ops->begin_step(step.view(), pools.views).ok());
  std::vector<std::int32_t> table0(12, -7);
  std::vector<std::int32_t> table1(12, -7);
  table0[1] = 4;
  table1[2 * 4 + 3] = 5;
  EXPECT_EQ(pools.tables[0], table0);
  EXPECT_EQ(pools.tables[1], table1);
  auto expected = before;
  for (const int target : {5, 6}) {
    std::memcpy(expected[1].data() + target * kBlockBytes, before[1].data() + 2 * kBlockBytes, kBlockBytes);
  }
  EXPECT_EQ(pools.blocks, expected);
}

TEST(BeginStep, UnknownTableIsRefusedBeforeAnyChange) {
  Pools pools;
  const auto before = pools.tables;
  TestStep step({});
  step.deltas = {{.table = 0, .slot = 0, .index = 0, .block = 1}};
  step.copies = {{.table = 2, .source = 0, .target = 1, .reserved = 0}};
  TestOps ops;
  const Status status = ops->begin_step(step.view(), pools.views);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("table 2"), std::string::npos);
  EXPECT_EQ(pools.tables, before);
}

TEST(CopySlot, DuplicatesEveryRingAndTableRow) {
  Pools pools;
  for (std::size_t i = 0; i < 12; ++i) pools.tables[0][i] = static_cast<std::int32_t>(i);
  std::array<std::vector<std::byte>, 2> rings = {poisoned(3 * 64, 3), poisoned(3 * 1000, 4)};
  const auto before = rings;
  const std::array<CacheRings, 2> views = {CacheRings{rings[0].data(), 64}, CacheRings{rings[1].data(), 1000}};
  TestOps ops(3);
  ASSERT_TRUE(ops->copy_slot(2, 0, pools.views, views).ok());
  EXPECT_EQ(pools.tables[0], (std::vector<std::int32_t>{8, 9, 10, 11, 4, 5, 6, 7, 8, 9, 10, 11}));
  for (std::size_t r = 0; r < 2; ++r) {
    auto expected = before[r];
    const std::size_t bytes = static_cast<std::size_t>(views[r].slot_bytes);
    std::memcpy(expected.data(), before[r].data() + 2 * bytes, bytes);
    EXPECT_EQ(rings[r], expected);
  }
  const auto after = rings;
  ASSERT_TRUE(ops->copy_slot(1, 1, pools.views, views).ok());
  EXPECT_EQ(rings, after);
}

TEST(WriteTableRows, WritesTheFirstEntriesOfTheSlotsRowsAndNothingElse) {
  for (const TableMemory& of : table_cases()) {
    for (std::int32_t slot = 0; slot < TableMemory::kSlots; ++slot) {
      TableMemory memory = of;
      TableMemory expected = of;
      TestOps ops;
      ASSERT_OK(memory.write(*ops, memory.entries().data(), slot));
      expected.write_entries(slot);
      EXPECT_EQ(memory.entries(), expected.entries()) << of.columns().size() << " tables, slot " << slot;
    }
  }
}

TEST(WriteTableRows, RefusesBeforeAnyChangeAndNamesTheField) {
  Pools pools;
  const auto before = pools.tables;
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5};
  const std::array<std::int32_t, 2> good = {2, 3};
  TestOps ops;
  const auto refused = [&](const Status& status, const char* field) {
    EXPECT_TRUE(test::fails_with(status, StatusCode::kInvalidArgument, {"write_table_rows", field}));
    EXPECT_EQ(pools.tables, before) << field;
  };
  refused(ops->write_table_rows(-1, ids.data(), good, pools.views), "slot = -1");
  refused(ops->write_table_rows(0, ids.data(), std::span(good).first(1), pools.views), "columns.size() = 1");
  refused(ops->write_table_rows(0, ids.data(), std::array{1, 5}, pools.views), "columns = 5");
  refused(ops->write_table_rows(0, ids.data(), std::array{1, -1}, pools.views), "columns = -1");
  refused(ops->write_table_rows(0, nullptr, good, pools.views), "ids is null");
  auto tables = pools.views;
  tables[1].block_table = nullptr;
  refused(ops->write_table_rows(0, ids.data(), good, tables), "block_table is null");
  EXPECT_OK(ops->write_table_rows(0, nullptr, std::array{0, 0}, pools.views));
  EXPECT_EQ(pools.tables, before);
}

}  // namespace
}  // namespace dsv4rt
