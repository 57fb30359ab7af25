#include "cache/block_allocator.h"

#include <string>

#include "base/check.h"

namespace dsv4rt {

BlockAllocator::BlockAllocator(std::int32_t blocks) {
  DSV4RT_CHECK(blocks >= 1);
  owners_.assign(static_cast<std::size_t>(blocks), 0);
  free_blocks_.reserve(static_cast<std::size_t>(blocks) - 1);
  for (std::int32_t block = blocks - 1; block > 0; --block) free_blocks_.push_back(block);
  free_count_ = blocks - 1;
}

Status BlockAllocator::check(std::span<const std::int32_t> expected_owners) const {
  const auto wrong = [](std::int64_t block, const std::string& what) {
    return Status(StatusCode::kInternal, "block " + std::to_string(block) + " " + what);
  };
  DSV4RT_CHECK(expected_owners.size() == owners_.size());
  if (owners_[0] != 0 || expected_owners[0] != 0) return wrong(0, "(the null block) has an owner");
  std::int32_t live_blocks = 0;
  for (std::size_t block = 1; block < owners_.size(); ++block) {
    if (owners_[block] != expected_owners[block]) {
      return wrong(static_cast<std::int64_t>(block), "counts " + std::to_string(owners_[block]) +
                                                         " owners; tables hold it " +
                                                         std::to_string(expected_owners[block]) + " times");
    }
    live_blocks += owners_[block] > 0 ? 1 : 0;
  }
  // With free + live = total and every free entry a distinct block without owner, none is lost.
  if (live_blocks + free_count_ != total()) {
    return wrong(-1, "accounting: " + std::to_string(free_count_) + " free + " + std::to_string(live_blocks) +
                         " live, total " + std::to_string(total()));
  }
  std::vector<bool> seen(owners_.size(), false);
  for (std::int32_t i = 0; i < free_count_; ++i) {
    const auto block = static_cast<std::size_t>(free_blocks_[static_cast<std::size_t>(i)]);
    if (block == 0 || block >= owners_.size() || owners_[block] != 0 || seen[block]) {
      return wrong(static_cast<std::int64_t>(block), "is on the free list but null, owned or listed twice");
    }
    seen[block] = true;
  }
  return {};
}

}  // namespace dsv4rt
