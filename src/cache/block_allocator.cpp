#include "cache/block_allocator.h"

#include <algorithm>
#include <string>

#include "base/check.h"

namespace dsv4rt {

BlockAllocator::BlockAllocator(std::int32_t blocks, Prefixes prefixes) {
  DSV4RT_CHECK(blocks >= 1);
  owners_.assign(static_cast<std::size_t>(blocks), 0);
  if (prefixes == Prefixes::kCached) prefix_use_.resize(static_cast<std::size_t>(blocks));
  free_blocks_.reserve(static_cast<std::size_t>(blocks) - 1);
  for (std::int32_t block = blocks - 1; block > 0; --block) free_blocks_.push_back(block);
  free_count_ = blocks - 1;
}

void BlockAllocator::add_prefix(BlockId block, std::int32_t rows, bool pinned) {
  DSV4RT_CHECK(handed_out(block) && !prefix_use_.empty());
  const bool idle = owners_[index(block)] == 0;
  if (idle) --idle_count(block);
  PrefixUse& use = prefix_use_[index(block)];
  ++use.nodes;
  use.pinned_nodes += pinned ? 1 : 0;
  use.rows = std::max(use.rows, rows);
  if (idle) ++idle_count(block);
}

bool BlockAllocator::drop_prefix(BlockId block, std::int32_t rows, bool pinned) {
  DSV4RT_CHECK(handed_out(block) && prefix_use(block).nodes > 0);
  const bool idle = owners_[index(block)] == 0;
  if (idle) --idle_count(block);
  PrefixUse& use = prefix_use_[index(block)];
  --use.nodes;
  use.pinned_nodes -= pinned ? 1 : 0;
  use.rows = use.nodes > 0 ? rows : 0;
  if (!idle) return false;
  if (use.nodes > 0) {
    ++idle_count(block);
    return false;
  }
  push_free(block);
  return true;
}

void BlockAllocator::change_pin(BlockId block, std::int32_t change) {
  DSV4RT_CHECK(handed_out(block) && prefix_use(block).nodes > 0);
  const bool idle = owners_[index(block)] == 0;
  if (idle) --idle_count(block);
  prefix_use_[index(block)].pinned_nodes += change;
  if (idle) ++idle_count(block);
}

Status BlockAllocator::check(std::span<const std::int32_t> expected_owners,
                             std::span<const PrefixUse> expected_use) const {
  const auto wrong = [](std::int64_t block, const std::string& what) {
    return Status(StatusCode::kInternal, "block " + std::to_string(block) + " " + what);
  };
  const auto text = [](const PrefixUse& use) {
    return std::to_string(use.nodes) + " prefix nodes, " + std::to_string(use.pinned_nodes) + " pinned, " +
           std::to_string(use.rows) + " rows";
  };
  DSV4RT_CHECK(expected_owners.size() == owners_.size());
  DSV4RT_CHECK(expected_use.empty() || expected_use.size() == owners_.size());
  if (owners_[0] != 0 || expected_owners[0] != 0) return wrong(0, "(the null block) has an owner");
  std::int32_t live_blocks = 0;
  std::int32_t cached_blocks = 0;
  std::int32_t pinned_blocks = 0;
  for (std::size_t block = 1; block < owners_.size(); ++block) {
    if (owners_[block] != expected_owners[block]) {
      return wrong(static_cast<std::int64_t>(block), "counts " + std::to_string(owners_[block]) +
                                                         " owners; tables hold it " +
                                                         std::to_string(expected_owners[block]) + " times");
    }
    const PrefixUse use = prefix_use(BlockId(static_cast<std::int32_t>(block)));
    const PrefixUse expected = expected_use.empty() ? PrefixUse{} : expected_use[block];
    if (!(use == expected)) {
      return wrong(static_cast<std::int64_t>(block), "counts " + text(use) + "; the tree has " + text(expected));
    }
    live_blocks += owners_[block] > 0 ? 1 : 0;
    pinned_blocks += owners_[block] == 0 && use.pinned_nodes > 0 ? 1 : 0;
    cached_blocks += owners_[block] == 0 && use.nodes > 0 && use.pinned_nodes == 0 ? 1 : 0;
  }
  // With all four adding up and every free entry a distinct block that nobody has, none is lost.
  if (live_blocks != live() || cached_blocks != cached_count_ || pinned_blocks != pinned_count_) {
    return wrong(-1, "accounting: " + std::to_string(free_count_) + " free + " + std::to_string(live_blocks) +
                         " live + " + std::to_string(cached_blocks) + " cached + " + std::to_string(pinned_blocks) +
                         " pinned, total " + std::to_string(total()) + ", counted " + std::to_string(cached_count_) +
                         " cached and " + std::to_string(pinned_count_) + " pinned");
  }
  std::vector<bool> seen(owners_.size(), false);
  for (std::int32_t i = 0; i < free_count_; ++i) {
    const auto block = static_cast<std::size_t>(free_blocks_[static_cast<std::size_t>(i)]);
    if (block == 0 || block >= owners_.size() || seen[block] || handed_out(BlockId(static_cast<std::int32_t>(block)))) {
      return wrong(static_cast<std::int64_t>(block), "is on the free list but null, owned, cached or listed twice");
    }
    seen[block] = true;
  }
  return {};
}

}  // namespace dsv4rt
