// How the last items of attention divide evenly among blocks.
#include "backend/cuda/kernels/attend/even_plan.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace dsv4rt::test {
namespace {

using cuda::EvenShares;

// Every tile of every item is some block's, once; a tail comes behind the head, whose block has the number before and
// nothing in front of it; and no block has much more than another.
TEST(EvenShares, CoverEveryTile) {
  for (const std::int32_t blocks : {1, 2, 7, 132}) {
    for (std::int32_t items = blocks; items < 4 * blocks; ++items) {
      for (const std::int32_t tiles : {1, 2, 3, 9, 10, 18}) {
        const auto shares = EvenShares::of(items, blocks);
        ASSERT_GE(shares.rest, blocks);
        ASSERT_LT(shares.rest, 2 * blocks);
        std::vector<std::int32_t> covered(static_cast<std::size_t>(items), 0);
        std::vector<std::int32_t> bound(static_cast<std::size_t>(items), -1);
        std::int32_t most = 0;
        for (std::int32_t block = 0; block < blocks; ++block) {
          std::int32_t load = 0;
          std::int32_t i = 0;
          for (;; ++i) {
            const auto [index, part] = shares.item(shares.share(block), block, i);
            if (index == EvenShares::kNone) break;
            ASSERT_LT(i, shares.rounds + 3);
            ASSERT_GE(index, 0);
            ASSERT_LT(index, items);
            const auto at = static_cast<std::size_t>(index);
            const std::int32_t head = part == EvenShares::kWhole ? 0 : shares.head_tiles(block, part, tiles);
            ASSERT_EQ(head % 2, 0);
            ASSERT_LT(head, tiles);
            std::int32_t own = tiles - head;
            if (part == EvenShares::kHead) {
              ASSERT_EQ(i, 0);
              bound[at] = own = head;
            } else if (part == EvenShares::kTail) {
              ASSERT_EQ(bound[at], head) << "the block before has the head, up to the same tile";
              ASSERT_EQ(shares.item(shares.share(block - 1), block - 1, 0).index, index);
            }
            covered[at] += own;
            load += own;
          }
          ASSERT_EQ(shares.item(shares.share(block), block, i + 1).index, EvenShares::kNone);
          most = std::max(most, load);
        }
        for (const std::int32_t of_item : covered) ASSERT_EQ(of_item, tiles);
        const std::int32_t fair = (items * tiles + blocks - 1) / blocks;
        ASSERT_LE(most, fair + 4) << items << " items of " << tiles << " tiles, " << blocks << " blocks";
      }
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
