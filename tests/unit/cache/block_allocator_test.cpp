#include "cache/block_allocator.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"
#include "cache/handle_origin.h"
#include "cache/sequence_table.h"

namespace dsv4rt {
namespace {

TEST(BlockAllocator, HandsOutEveryBlockButTheNullBlockOnce) {
  BlockAllocator allocator(5);
  EXPECT_EQ(allocator.total(), 4);
  std::set<std::int32_t> seen;
  while (allocator.free() > 0) seen.insert(allocator.allocate().value);
  EXPECT_EQ(seen, (std::set<std::int32_t>{1, 2, 3, 4}));
  EXPECT_EQ(allocator.live(), 4);
}

TEST(BlockAllocator, ReusesTheLastFreedBlockFirst) {
  BlockAllocator allocator(4);
  const BlockId first = allocator.allocate();
  const BlockId second = allocator.allocate();
  allocator.drop_owner(first);
  allocator.drop_owner(second);
  EXPECT_EQ(allocator.allocate(), second);
  EXPECT_EQ(allocator.allocate(), first);
}

TEST(BlockAllocator, FreesWithTheLastOwner) {
  BlockAllocator allocator(3);
  const BlockId block = allocator.allocate();
  allocator.add_owner(block);
  EXPECT_EQ(allocator.owners(block), 2);
  allocator.drop_owner(block);
  EXPECT_EQ(allocator.free(), 1);
  allocator.drop_owner(block);
  EXPECT_EQ(allocator.free(), 2);
}

TEST(BlockAllocator, OnlyTheNullBlock) {
  BlockAllocator allocator(1);
  EXPECT_EQ(allocator.total(), 0);
  EXPECT_EQ(allocator.free(), 0);
  EXPECT_THROW(BlockAllocator(0), CheckFailure);
}

TEST(BlockAllocator, CheckNamesTheBlockThatIsWrong) {
  BlockAllocator allocator(4);
  const auto block = static_cast<std::size_t>(allocator.allocate().value);
  std::vector<std::int32_t> owners(4, 0);
  owners[block] = 1;
  EXPECT_TRUE(allocator.check(owners).ok());
  owners[block] = 2;
  EXPECT_EQ(allocator.check(owners).code(), StatusCode::kInternal);
  owners[block] = 1;
  owners[0] = 1;
  EXPECT_NE(allocator.check(owners).message().find("block 0"), std::string::npos);
}

// A caller that frees twice shows up in the check instead of handing one block to two owners.
// A block freed twice, or owned again without being taken, would be handed to two sequences.
TEST(BlockAllocator, OwnersOfFreeAndUnknownBlocksAreRefused) {
  BlockAllocator allocator(4);
  const BlockId block = allocator.allocate();
  allocator.drop_owner(block);
  for (const BlockId nobodys : {block, BlockId(0), BlockId(3), BlockId(4), BlockId(-1)}) {
    EXPECT_THROW(allocator.drop_owner(nobodys), CheckFailure);
    EXPECT_THROW(allocator.add_owner(nobodys), CheckFailure);
  }
  EXPECT_TRUE(allocator.check(std::vector<std::int32_t>(4, 0)).ok());
}

TEST(BlockAllocator, MoreBlocksThanAreFreeAreRefused) {
  BlockAllocator allocator(3);
  const auto ignored = [](std::int32_t, BlockId) {};
  EXPECT_THROW(allocator.allocate(3, ignored), CheckFailure);
  EXPECT_THROW(allocator.allocate(-1, ignored), CheckFailure);
  allocator.allocate(2, ignored);
  EXPECT_THROW(allocator.allocate(), CheckFailure);
  EXPECT_TRUE(allocator.check(std::vector<std::int32_t>{0, 1, 1}).ok());
}

TEST(SequenceTable, GenerationsMakeOldIdsStale) {
  SequenceTable table(2);
  const std::int32_t slot = table.acquire();
  const SequenceId id = table.id(slot);
  EXPECT_NE(id.generation, 0u);
  EXPECT_EQ(table.find(id), slot);
  table.release(slot);
  EXPECT_EQ(table.find(id), SequenceTable::kNone);
  EXPECT_EQ(table.acquire(), slot);
  EXPECT_EQ(table.find(id), SequenceTable::kNone);
  EXPECT_NE(table.id(slot), id);
  EXPECT_EQ(table.find(SequenceId{}), SequenceTable::kNone);
  EXPECT_EQ(table.find(SequenceId{.index = 99, .generation = 1}), SequenceTable::kNone);
}

TEST(SequenceTable, GenerationNeverBecomesZero) {
  SequenceTable table(1);
  const std::int32_t slot = table.acquire();
  table[slot].generation = 0xffffffffu;
  table.release(slot);
  EXPECT_EQ(table[slot].generation, 1u);
}

// Ids of two engines could meet only after a slot was used as often as their first generations lie apart.
TEST(SequenceTable, EnginesBeginFarFromEachOther) {
  constexpr std::uint32_t kEngines = 4096;
  std::vector<std::uint32_t> first;
  for (std::uint32_t engine = 0; engine < kEngines; ++engine) {
    const HandleOrigin origin = HandleOrigin::of_engine(engine);
    SequenceTable table(2, origin.first_generation);
    EXPECT_EQ(table.id(table.acquire()).generation, origin.first_generation);
    EXPECT_EQ(origin.steps_before, std::uint64_t{engine} << 40U);
    first.push_back(origin.first_generation);
  }
  EXPECT_EQ(first.front(), 1U);
  std::sort(first.begin(), first.end());
  for (std::size_t i = 1; i < first.size(); ++i) ASSERT_GT(first[i] - first[i - 1], (1U << 31U) / (3 * kEngines) * 2);
  EXPECT_THROW(SequenceTable(1, 0), CheckFailure);
}

TEST(SequenceTable, CheckFindsDisagreement) {
  SequenceTable table(2);
  const std::int32_t slot = table.acquire();
  EXPECT_TRUE(table.check().ok());
  table[slot].live = false;
  EXPECT_EQ(table.check().code(), StatusCode::kInternal);
  table[slot].live = true;
  table[1 - slot].live = true;
  EXPECT_EQ(table.check().code(), StatusCode::kInternal);
  EXPECT_THROW(SequenceTable(0), CheckFailure);
}

TEST(SequenceTable, StaleMessagesNameIndexAndGeneration) {
  SequenceTable table(2);
  const SequenceId id = table.id(table.acquire());
  table.release(static_cast<std::int32_t>(id.index));
  const Status status = table.stale(id);
  EXPECT_EQ(status.code(), StatusCode::kStaleHandle);
  EXPECT_NE(status.message().find("index 0, generation 1"), std::string::npos) << status.message();
  EXPECT_NE(table.stale({.index = 7, .generation = 3}).message().find("never existed"), std::string::npos);
}

}  // namespace
}  // namespace dsv4rt
