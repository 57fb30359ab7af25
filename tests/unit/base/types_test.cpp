#include "dsv4rt/types.h"

#include <type_traits>
#include <unordered_set>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

// Two kinds of id, and an id and an integer, must not convert into one another.
static_assert(!std::is_convertible_v<int, LayerId>);
static_assert(!std::is_convertible_v<LayerId, int>);
static_assert(!std::is_convertible_v<LayerId, BlockId>);
static_assert(!std::is_constructible_v<BlockId, StateSlotId>);
static_assert(sizeof(BlockId) == sizeof(std::int32_t));
static_assert(std::is_trivially_copyable_v<SequenceId> && sizeof(SequenceId) == 8);

TEST(StrongId, ComparesByValue) {
  EXPECT_EQ(LayerId(3), LayerId(3));
  EXPECT_NE(LayerId(3), LayerId(4));
  EXPECT_LT(BlockId(-1), BlockId(0));
  EXPECT_EQ(StateSlotId().value, 0);
}

TEST(SequenceId, GenerationsOfOneIndexDiffer) {
  const SequenceId first{.index = 5, .generation = 1};
  const SequenceId second{.index = 5, .generation = 2};
  EXPECT_NE(first, second);
  EXPECT_NE(first, SequenceId{});
  EXPECT_EQ(SequenceId{}.generation, 0u);
}

TEST(SequenceId, HashSetKeepsGenerationsApart) {
  std::unordered_set<SequenceId> ids;
  for (std::uint32_t index = 0; index < 8; ++index) {
    for (std::uint32_t generation = 0; generation < 8; ++generation) ids.insert({index, generation});
  }
  EXPECT_EQ(ids.size(), 64u);
  // Neither field may be dropped, nor the two be interchangeable.
  const std::hash<SequenceId> hash;
  EXPECT_NE(hash({1, 2}), hash({2, 1}));
}

}  // namespace
}  // namespace dsv4rt
