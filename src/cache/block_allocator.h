// BlockAllocator: who owns which block of one pool. Ids only; the bytes are the backend's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// What cached prefixes have of a block.
struct PrefixUse {
  std::int32_t nodes = 0;         // cached units with rows in the block
  std::int32_t pinned_nodes = 0;  // pinned ones among them
  std::int32_t rows = 0;          // leading rows that they need as they are; 0 without nodes
  friend bool operator==(const PrefixUse&, const PrefixUse&) = default;
};

// A free list (last freed, first reused), the sequences that own each block and the cached prefixes that use it.
// A block is in one of four states: live (a sequence owns it), pinned (no sequence does, a pinned prefix uses it),
// cached (prefixes use it that may be removed) or free. Block 0, the null block that padding refers to, is in none of
// them and never handed out.
class BlockAllocator {
 public:
  enum class Prefixes : std::uint8_t { kNone, kCached };  // whether there will be cached prefixes
  // `blocks` >= 1 counts the null block. Takes all memory it will ever need.
  explicit BlockAllocator(std::int32_t blocks, Prefixes prefixes = Prefixes::kNone);

  [[nodiscard]] std::int32_t total() const noexcept { return static_cast<std::int32_t>(owners_.size()) - 1; }
  [[nodiscard]] std::int32_t free() const noexcept { return free_count_; }
  [[nodiscard]] std::int32_t cached() const noexcept { return cached_count_; }
  [[nodiscard]] std::int32_t pinned() const noexcept { return pinned_count_; }
  [[nodiscard]] std::int32_t live() const noexcept { return total() - free_count_ - cached_count_ - pinned_count_; }
  // Blocks that can be had: removing prefixes makes every cached block a free one.
  [[nodiscard]] std::int32_t available() const noexcept { return free_count_ + cached_count_; }
  // Sequences whose table holds the block.
  [[nodiscard]] std::int32_t owners(BlockId block) const noexcept { return owners_[index(block)]; }
  [[nodiscard]] PrefixUse prefix_use(BlockId block) const noexcept {
    return prefix_use_.empty() ? PrefixUse{} : prefix_use_[index(block)];
  }
  // Whether the block is lost to its pool when its last owner leaves.
  [[nodiscard]] bool held_by_pin(BlockId block) const noexcept { return prefix_use(block).pinned_nodes > 0; }
  // Whether the owner, if it is the only one, may write `row` of the block: no prefix needs what is there.
  [[nodiscard]] bool writable(BlockId block, std::int32_t row) const noexcept {
    return owners(block) == 1 && prefix_use(block).rows <= row;
  }

  // `count` blocks with one owner each: calls sink(i, block) for i in [0, count). Precondition:
  // free() >= count, which callers make sure of for the whole step first.
  template <class Sink>
  void allocate(std::int32_t count, Sink sink) {
    DSV4RT_CHECK(count >= 0 && count <= free_count_);
    free_count_ -= count;
    const std::int32_t* next = free_blocks_.data() + free_count_ + count;
    std::int32_t* owners = owners_.data();
    for (std::int32_t i = 0; i < count; ++i) {
      const std::int32_t block = *--next;
      owners[block] = 1;
      sink(i, BlockId(block));
    }
  }
  BlockId allocate() {
    BlockId taken;
    allocate(1, [&](std::int32_t, BlockId block) { taken = block; });
    return taken;
  }
  // Precondition: the block has an owner or a prefix.
  void add_owner(BlockId block) {
    DSV4RT_CHECK(handed_out(block));
    if (owners_[index(block)]++ == 0) --idle_count(block);
  }
  // The block becomes cached, pinned or free when its last owner leaves. Precondition: it has one.
  void drop_owner(BlockId block) {
    DSV4RT_CHECK(handed_out(block) && owners_[index(block)] > 0);
    if (--owners_[index(block)] > 0) return;
    if (prefix_use(block).nodes > 0) {
      ++idle_count(block);
    } else {
      push_free(block);
    }
  }

  // A cached unit with rows in the block comes; it needs the first `rows`. Precondition: as for add_owner.
  void add_prefix(BlockId block, std::int32_t rows, bool pinned);
  // A cached unit leaves; those that stay need the first `rows`. Whether that freed the block.
  bool drop_prefix(BlockId block, std::int32_t rows, bool pinned);
  // A unit that is there becomes pinned (+1) or stops being so (-1).
  void change_pin(BlockId block, std::int32_t change);

  // Compares with `expected_owners` and `expected_use` (one entry per block, counted from block tables and cached
  // prefixes; no entries: none) and checks the free list; kInternal naming the first block that is wrong.
  [[nodiscard]] Status check(std::span<const std::int32_t> expected_owners,
                             std::span<const PrefixUse> expected_use = {}) const;

 private:
  static std::size_t index(BlockId block) noexcept { return static_cast<std::size_t>(block.value); }
  // A handed-out block of this pool: neither the null block, nor a free one, nor a number out of range.
  [[nodiscard]] bool handed_out(BlockId block) const noexcept {
    return block.value > 0 && index(block) < owners_.size() &&
           (owners_[index(block)] > 0 || prefix_use(block).nodes > 0);
  }
  // The count that a used block without owner is part of.
  std::int32_t& idle_count(BlockId block) noexcept { return held_by_pin(block) ? pinned_count_ : cached_count_; }
  void push_free(BlockId block) noexcept { free_blocks_[static_cast<std::size_t>(free_count_++)] = block.value; }

  std::vector<std::int32_t> owners_;
  std::vector<PrefixUse> prefix_use_;      // empty without cached prefixes
  std::vector<std::int32_t> free_blocks_;  // [0, free_count_) are free; the top is handed out next
  std::int32_t free_count_ = 0;
  std::int32_t cached_count_ = 0;
  std::int32_t pinned_count_ = 0;
};

}  // namespace dsv4rt
