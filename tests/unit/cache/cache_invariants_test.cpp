// The invariant check must be able to fail: every invariant is broken once, on purpose.
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "cache/cache_state.h"
#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::config_with_ratios;
using testing_cache::make_cache;
using testing_cache::TestCache;

// Two sequences of 100 tokens, taken through the same staging as prepare_forward does.
CacheState two_sequences() {
  CacheFormats formats;
  formats.csa_rows_per_block = 16;
  const TestCache cache = make_cache(config_with_ratios({4, 128}), formats,
                                     {.max_sequences = 3, .max_context_tokens = 512, .max_step_tokens = 512});
  CacheState state(cache.schedule, cache.layout, cache.plan,
                   *step_capacity(cache.schedule, cache.layout, cache.plan.limits), {});
  for (int i = 0; i < 2; ++i) {
    const std::int32_t slot = state.sequences.acquire();
    state.step.segments.push_back({.slot = slot, .start = 0, .tokens = 100});
  }
  EXPECT_TRUE(stage_blocks(state).ok());
  for (std::int32_t slot = 0; slot < 2; ++slot) {
    state.sequences[slot].length = 100;
    state.sequences[slot].high_water = 100;
  }
  EXPECT_TRUE(state.check().ok());
  return state;
}

void expect_broken(const std::string& says, const std::function<void(CacheState&)>& damage) {
  CacheState state = two_sequences();
  damage(state);
  const Status status = state.check();
  EXPECT_EQ(status.code(), StatusCode::kInternal) << says;
  EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
}

TEST(CacheInvariants, EveryBrokenOneIsNamed) {
  expect_broken("slots:", [](CacheState& state) { state.sequences[0].live = false; });
  expect_broken("generation 0", [](CacheState& state) { state.sequences[0].generation = 0; });
  expect_broken("length 513", [](CacheState& state) { state.sequences[0].length = 513; });
  expect_broken("length 4", [](CacheState& state) { state.sequences[2].length = 4; });
  expect_broken("rings written up to 99", [](CacheState& state) { state.sequences[0].high_water = 99; });
  expect_broken("rings written up to 300", [](CacheState& state) { state.sequences[0].high_water = 300; });
  expect_broken("holds block 0", [](CacheState& state) { state.groups[0].table_entry(0, 0)[1] = 0; });
  expect_broken("holds block 3", [](CacheState& state) { state.groups[0].table_entry(0, 5)[0] = 3; });
  expect_broken("holds block -1", [](CacheState& state) { state.groups[0].table_entry(0, 0)[0] = -1; });
  expect_broken("owners; tables hold it",
                [](CacheState& state) { state.groups[0].table_entry(0, 0)[0] = state.groups[0].table_entry(1, 0)[0]; });
  expect_broken("in place", [](CacheState& state) {
    state.allocators[0].add_owner(BlockId(state.groups[0].table_entry(0, 0)[0]));
  });
  expect_broken("shares more blocks", [](CacheState& state) { state.groups[0].set_shared_prefix_blocks(0, 9); });
  expect_broken("reservations sum up to 0", [](CacheState& state) { state.groups[1].set_reserved_blocks(1); });
  expect_broken("blocks free or cached, reserved are", [](CacheState& state) {
    state.sequences[0].reserve_tokens = 1 << 20;  // more than the pools can ever hold
    KvCacheGroup& csa = state.groups[0];
    csa.set_reserved_blocks(csa.outstanding_reservation(state.sequences[0], 0));
    KvCacheGroup& hca = state.groups[1];
    hca.set_reserved_blocks(hca.outstanding_reservation(state.sequences[0], 0));
  });
}

// A batch that fails after copies were counted leaves the shared blocks shared.
TEST(CacheInvariants, FailedStagingUndoesCountedCopies) {
  CacheState state = two_sequences();
  // Slot 1 takes over slot 0's blocks as a fork would.
  for (KvCacheGroup& group : state.groups) {
    for (std::int32_t column = 0; column < group.blocks(100); ++column) {
      for (std::size_t member = 0; member < group.pools().size(); ++member) {
        BlockAllocator& allocator = state.allocators[static_cast<std::size_t>(group.pools()[member])];
        allocator.drop_owner(BlockId(group.table_entry(1, column)[member]));
        group.table_entry(1, column)[member] = group.table_entry(0, column)[member];
        allocator.add_owner(BlockId(group.table_entry(1, column)[member]));
      }
    }
    group.set_shared_prefix_blocks(0, group.blocks(100));
    group.set_shared_prefix_blocks(1, group.blocks(100));
  }
  ASSERT_TRUE(state.check().ok());
  // Leave the index keys without a free block: CSA rows are counted first, then the keys fail.
  while (state.allocators[1].free() > 0) static_cast<void>(state.allocators[1].allocate());
  state.step.segments.assign({{.slot = 0, .start = 100, .tokens = 4}, {.slot = 1, .start = 100, .tokens = 4}});
  const std::int32_t tail = state.groups[0].table_entry(0, 1)[0];
  EXPECT_EQ(stage_blocks(state).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(state.allocators[0].owners(BlockId(tail)), 2);
  EXPECT_EQ(state.groups[0].table_entry(0, 1)[0], tail);
  EXPECT_EQ(state.groups[0].table_entry(1, 1)[0], tail);
}

}  // namespace
}  // namespace dsv4rt
