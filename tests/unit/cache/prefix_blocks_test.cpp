// Blocks that prefixes use: the allocator's four states, and which blocks hold a unit's rows.
#include <set>

#include "cache/block_allocator.h"
#include "cache/prefix_unit_blocks.h"
#include "prefix_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::config_with_ratios;

struct States {
  std::int32_t free, live, cached, pinned;
  friend bool operator==(const States&, const States&) = default;
};
States states(const BlockAllocator& allocator) {
  EXPECT_EQ(allocator.free() + allocator.live() + allocator.cached() + allocator.pinned(), allocator.total());
  return {allocator.free(), allocator.live(), allocator.cached(), allocator.pinned()};
}

TEST(PrefixBlocks, ABlockIsFreeLiveCachedOrPinned) {
  BlockAllocator allocator(6, BlockAllocator::Prefixes::kCached);
  const BlockId block = allocator.allocate();
  EXPECT_EQ(states(allocator), (States{4, 1, 0, 0}));
  allocator.add_prefix(block, 3, false);
  EXPECT_EQ(states(allocator), (States{4, 1, 0, 0})) << "an owner makes it live, whoever else uses it";
  allocator.drop_owner(block);
  EXPECT_EQ(states(allocator), (States{4, 0, 1, 0}));
  EXPECT_EQ(allocator.available(), 5);
  allocator.change_pin(block, 1);
  EXPECT_EQ(states(allocator), (States{4, 0, 0, 1}));
  EXPECT_EQ(allocator.available(), 4);
  allocator.add_owner(block);
  EXPECT_EQ(states(allocator), (States{4, 1, 0, 0}));
  allocator.drop_owner(block);
  EXPECT_EQ(states(allocator), (States{4, 0, 0, 1}));
  allocator.change_pin(block, -1);
  EXPECT_EQ(states(allocator), (States{4, 0, 1, 0}));
  EXPECT_TRUE(allocator.drop_prefix(block, 0, false));
  EXPECT_EQ(states(allocator), (States{5, 0, 0, 0}));
  EXPECT_THROW(allocator.add_owner(block), CheckFailure);
  EXPECT_THROW(allocator.add_prefix(block, 1, false), CheckFailure);
  EXPECT_THROW(static_cast<void>(allocator.drop_prefix(block, 0, false)), CheckFailure);
}

TEST(PrefixBlocks, TheOnlyOwnerWritesBehindTheRowsThatPrefixesNeed) {
  BlockAllocator allocator(4, BlockAllocator::Prefixes::kCached);
  const BlockId block = allocator.allocate();
  EXPECT_TRUE(allocator.writable(block, 0));
  allocator.add_prefix(block, 2, false);
  allocator.add_prefix(block, 4, false);
  EXPECT_EQ(allocator.prefix_use(block), (PrefixUse{.nodes = 2, .pinned_nodes = 0, .rows = 4}));
  EXPECT_FALSE(allocator.writable(block, 3));
  EXPECT_TRUE(allocator.writable(block, 4));
  EXPECT_FALSE(allocator.drop_prefix(block, 2, false));
  EXPECT_TRUE(allocator.writable(block, 2));
  EXPECT_FALSE(allocator.writable(block, 1));
  allocator.add_owner(block);
  EXPECT_FALSE(allocator.writable(block, 2)) << "somebody else reads there";
  allocator.drop_owner(block);
  EXPECT_FALSE(allocator.drop_prefix(block, 7, false)) << "its owner keeps it";
  EXPECT_TRUE(allocator.writable(block, 0));
}

TEST(PrefixBlocks, OnePinAmongSeveralUsersKeepsTheBlock) {
  BlockAllocator allocator(3, BlockAllocator::Prefixes::kCached);
  const BlockId block = allocator.allocate();
  allocator.add_prefix(block, 1, true);
  allocator.add_prefix(block, 2, false);
  EXPECT_TRUE(allocator.held_by_pin(block));
  allocator.drop_owner(block);
  EXPECT_EQ(states(allocator), (States{1, 0, 0, 1}));
  EXPECT_FALSE(allocator.drop_prefix(block, 1, false));
  EXPECT_EQ(states(allocator), (States{1, 0, 0, 1}));
  EXPECT_TRUE(allocator.drop_prefix(block, 0, true));
}

TEST(PrefixBlocks, TheCheckComparesUsersAndStates) {
  BlockAllocator allocator(3, BlockAllocator::Prefixes::kCached);
  const BlockId block = allocator.allocate();
  allocator.add_prefix(block, 2, false);
  allocator.drop_owner(block);
  std::vector<PrefixUse> uses(3);
  uses[static_cast<std::size_t>(block.value)] = {.nodes = 1, .pinned_nodes = 0, .rows = 2};
  const std::vector<std::int32_t> owners{0, 0, 0};
  EXPECT_TRUE(allocator.check(owners, uses).ok());
  for (const PrefixUse& wrong : {PrefixUse{2, 0, 2}, PrefixUse{1, 1, 2}, PrefixUse{1, 0, 1}, PrefixUse{}}) {
    uses[static_cast<std::size_t>(block.value)] = wrong;
    EXPECT_EQ(allocator.check(owners, uses).code(), StatusCode::kInternal);
  }
}

// Every row of every unit is in exactly one of its blocks, the counts say how far, and ids have a place each.
void expect_rows_covered(std::int32_t csa_rows, std::int32_t hca_rows, std::int32_t unit_tokens) {
  CacheFormats formats;
  formats.csa_rows_per_block = csa_rows;
  formats.hca_rows_per_block = hca_rows;
  const ModelConfig config = config_with_ratios({4, 128, 4});
  const LayerSchedule schedule = *LayerSchedule::create(config);
  const CacheLayout layout = *CacheLayout::create(config, schedule, formats);
  const std::vector<KvCacheGroup> groups = KvCacheGroup::create_all(layout, 2, 1 << 16);
  const UnitBlocks blocks(groups, unit_tokens);
  std::vector<UnitBlock> before;
  for (std::int32_t unit = 1; unit <= 40; ++unit) {
    std::vector<std::vector<std::int32_t>> rows(layout.pools().size());
    std::set<std::size_t> places;
    std::vector<UnitBlock> now;
    blocks.for_each(unit, [&](const UnitBlock& block) {
      const KvCacheGroup& group = groups[block.group];
      const std::int32_t first = block.column * group.rows_per_block();
      ASSERT_EQ(group.pools()[block.member], block.pool);
      ASSERT_TRUE(block.id < blocks.ids() && places.insert(block.id).second);
      for (std::int32_t row = block.rows_before; row < block.rows; ++row) {
        rows[static_cast<std::size_t>(block.pool)].push_back(first + row);
      }
      EXPECT_EQ(block.inside_unit, first + group.rows_per_block() < group.rows(unit * unit_tokens));
      now.push_back(block);
      if (block.rows_before == 0) return;
      const UnitBlock above = blocks.of_unit_before(unit - 1, block);
      const auto same = std::find_if(before.begin(), before.end(), [&](const UnitBlock& candidate) {
        return candidate.pool == block.pool && candidate.column == block.column;
      });
      ASSERT_NE(same, before.end());
      EXPECT_EQ(same->id, block.id_before);
      EXPECT_EQ(same->id, above.id);
      EXPECT_EQ(same->rows, above.rows);
      EXPECT_EQ(same->rows_before, above.rows_before);
      if (same->rows_before > 0) {
        EXPECT_EQ(same->id_before, above.id_before);
      }
    });
    for (std::size_t pool = 0; pool < rows.size(); ++pool) {
      const std::int32_t ratio = layout.pools()[pool].ratio;
      std::vector<std::int32_t> expected;
      for (std::int32_t row = (unit - 1) * unit_tokens / ratio; row < unit * unit_tokens / ratio; ++row) {
        expected.push_back(row);
      }
      EXPECT_EQ(rows[pool], expected) << "unit " << unit << ", pool " << pool;
    }
    before = now;
  }
}

TEST(PrefixBlocks, UnitsOfEveryBlockSize) {
  for (const std::int32_t csa_rows : {1, 4, 16, 32, 64, 128}) {  // 4 .. 512 tokens
    for (const std::int32_t hca_rows : {1, 2, 4, 64}) expect_rows_covered(csa_rows, hca_rows, 128);
  }
}

TEST(PrefixBlocks, UnitsThatBeginAndEndInsideBlocks) {
  expect_rows_covered(32, 2, 384);  // 128-token blocks divide it, 256-token blocks do not
  expect_rows_covered(64, 4, 640);
  expect_rows_covered(16, 2, 896);
}

}  // namespace
}  // namespace dsv4rt
