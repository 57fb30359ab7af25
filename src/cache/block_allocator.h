// BlockAllocator: who owns which block of one pool. Ids only; the bytes are the backend's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// A free list (last freed, first reused) and a reference count per block. Block 0, the null block
// that padding refers to, is never handed out.
class BlockAllocator {
 public:
  // `blocks` >= 1 counts the null block. Takes all memory it will ever need.
  explicit BlockAllocator(std::int32_t blocks);

  [[nodiscard]] std::int32_t total() const noexcept { return static_cast<std::int32_t>(owners_.size()) - 1; }
  [[nodiscard]] std::int32_t free() const noexcept { return free_count_; }
  [[nodiscard]] std::int32_t live() const noexcept { return total() - free_count_; }
  // Sequences whose table holds the block.
  [[nodiscard]] std::int32_t owners(BlockId block) const noexcept { return owners_[index(block)]; }

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
  // Precondition: the block has an owner.
  void add_owner(BlockId block) {
    DSV4RT_CHECK(owns(block));
    ++owners_[index(block)];
  }
  // Frees the block when its last owner leaves. Precondition: it has one.
  void drop_owner(BlockId block) {
    DSV4RT_CHECK(owns(block));
    if (--owners_[index(block)] == 0) free_blocks_[static_cast<std::size_t>(free_count_++)] = block.value;
  }

  // Compares with `expected_owners` (one count per block, counted from the block tables) and checks
  // the free list; kInternal naming the first block that is wrong.
  [[nodiscard]] Status check(std::span<const std::int32_t> expected_owners) const;

 private:
  static std::size_t index(BlockId block) noexcept { return static_cast<std::size_t>(block.value); }
  // A handed-out block of this pool: neither the null block, nor a free one, nor a number out of range.
  [[nodiscard]] bool owns(BlockId block) const noexcept {
    return block.value > 0 && index(block) < owners_.size() && owners_[index(block)] > 0;
  }

  std::vector<std::int32_t> owners_;
  std::vector<std::int32_t> free_blocks_;  // [0, free_count_) are free; the top is handed out next
  std::int32_t free_count_ = 0;
};

}  // namespace dsv4rt
