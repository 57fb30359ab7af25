// How the last items of a step divide among blocks that take 64 heads of a token alone, where they would leave most
// blocks idle: evenly, and a token that lies across the bounds of two blocks is handed on from one to the other.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

// What the head of 64 heads of a token leaves: FP32 sums of values, for each head two greatest scores and four sums.
inline constexpr std::int64_t kHandedBytes = 64 * (512 * 4 + 6 * 4);
// Of every block of a GPU with as many multiprocessors as Hopper can have.
inline constexpr std::int64_t kMostHandedBytes = 144 * kHandedBytes;

// Whole items in turn, as many rounds of them as leave every block more than one and fewer than two; then every block
// an equal part of the rest, one after the other. No part is of more than three items, and no item of more than two
// parts.
struct EvenShares {
  std::int32_t blocks = 0;
  std::int32_t rounds = 0;  // whole items that each block has in front
  std::int32_t rest = 0;    // items behind them, blocks <= rest < 2 * blocks

  // An item of a block: all of it, its first rows up to a bound, or those behind it.
  enum Part : std::int32_t { kWhole, kHead, kTail };
  struct Item {
    std::int32_t index = 0;  // among the step's items; none: EvenShares::kNone
    Part part = kWhole;
  };
  static constexpr std::int32_t kNone = -1;

  // Precondition: as many items as blocks, at least.
  static constexpr EvenShares of(std::int32_t items, std::int32_t blocks) {
    const std::int32_t rounds = items / blocks - 1;
    return {.blocks = blocks, .rounds = rounds, .rest = items - rounds * blocks};
  }

  // Scratch for what heads leave, and zeros for whether they have.
  [[nodiscard]] constexpr std::int64_t bytes() const { return blocks * kHandedBytes; }
  [[nodiscard]] constexpr std::int64_t zero_bytes() const { return blocks * std::int64_t{sizeof(std::uint32_t)}; }

  // What a block has of the rest: the head of an item or kNone, whole ones, the tail of one or kNone.
  struct Share {
    std::int32_t head = kNone;
    std::int32_t first_whole = 0;
    std::int32_t wholes = 0;
    std::int32_t tail = kNone;
  };
  [[nodiscard]] constexpr Share share(std::int32_t block) const {
    const std::int32_t begin = block * rest;  // in parts of an item, of which it has `blocks`
    const std::int32_t end = begin + rest;
    const std::int32_t first = rounds * blocks;
    const std::int32_t first_whole = (begin + blocks - 1) / blocks;
    return {.head = end % blocks != 0 ? first + end / blocks : kNone,
            .first_whole = first + first_whole,
            .wholes = end / blocks - first_whole,
            .tail = begin % blocks != 0 ? first + begin / blocks : kNone};
  }

  // The block's `i`-th item. The head comes first of all: the block that waits for it has its tail at the end.
  [[nodiscard]] constexpr Item item(const Share& share, std::int32_t block, std::int32_t i) const {
    if (share.head != kNone) {
      if (i == 0) return {share.head, kHead};
      --i;
    }
    if (i < rounds) return {i * blocks + block, kWhole};
    i -= rounds;
    if (i < share.wholes) return {share.first_whole + i, kWhole};
    return {i == share.wholes ? share.tail : kNone, kTail};
  }

  // Tiles of the head, of a token that has `tiles`, on either side of the bound; even, since warpgroups take tiles in
  // turn. 0: the tail is all of it.
  [[nodiscard]] constexpr std::int32_t head_tiles(std::int32_t block, Part part, std::int32_t tiles) const {
    const std::int32_t bound = (part == kHead ? block + 1 : block) * rest % blocks;
    const std::int32_t nearest = (bound * tiles + blocks) / (2 * blocks) * 2;
    const std::int32_t most = (tiles - 1) / 2 * 2;
    return nearest < most ? nearest : most;
  }

  bool operator==(const EvenShares&) const = default;
};

}  // namespace dsv4rt::cuda
