// Context parallelism: which rows of a step a rank computes.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "step/step_metadata.h"

namespace dsv4rt {

struct RowRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// A step's rows in 2n pieces for n ranks. The rank at place p has pieces p and 2n - 1 - p: what a token reads grows
// with its position, and so every rank has as much to do. Rank `first` is at place 0, the ranks behind it follow, and
// rank 0 comes behind the last.
class ContextSplit {
 public:
  ContextSplit(std::int32_t tokens, std::int32_t ranks, std::int32_t first = 0)
      : tokens_(tokens), ranks_(ranks), first_(first) {}

  [[nodiscard]] std::int32_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int32_t ranks() const noexcept { return ranks_; }
  [[nodiscard]] std::int32_t pieces() const noexcept { return 2 * ranks_; }
  [[nodiscard]] std::int32_t first() const noexcept { return first_; }
  [[nodiscard]] std::int32_t place(std::int32_t rank) const noexcept { return (rank - first_ + ranks_) % ranks_; }
  // Pieces begin at multiples of 16 rows, where every array of the step is aligned for a device; some may be empty.
  [[nodiscard]] RowRange piece(std::int32_t index) const noexcept {
    const std::int32_t first = bound(index);
    return {first, bound(index + 1) - first};
  }
  [[nodiscard]] std::int32_t owner(std::int32_t index) const noexcept {
    return ((index < ranks_ ? index : pieces() - 1 - index) + first_) % ranks_;
  }
  [[nodiscard]] std::array<RowRange, 2> of_rank(std::int32_t rank) const noexcept {
    return {piece(place(rank)), piece(pieces() - 1 - place(rank))};
  }
  // How many places, from 0 on, have a piece at `index` or behind it. Who is there reads what lies before that piece.
  [[nodiscard]] std::int32_t places_from(std::int32_t index) const noexcept {
    return std::clamp(pieces() - index, 0, ranks_);
  }

 private:
  [[nodiscard]] std::int32_t bound(std::int32_t index) const noexcept {
    if (index == pieces()) return tokens_;
    constexpr std::int64_t kRows = 16;
    return static_cast<std::int32_t>(std::int64_t{tokens_} * index / pieces() / kRows * kRows);
  }

  std::int32_t tokens_;
  std::int32_t ranks_;
  std::int32_t first_;
};

// The step as operations on these rows alone see it: sequences are the whole step's, so that a token still finds what
// came before it in the step.
inline StepView rows_of_step(StepView step, RowRange rows) noexcept {
  step.counts.valid_tokens = std::clamp(step.counts.valid_tokens - rows.first, 0, rows.count);
  step.counts.tokens = rows.count;
  step.token_position += rows.first;
  step.token_sequence += rows.first;
  for (int ratio = 0; ratio < kMaxRatioClasses; ++ratio) {
    if (step.valid_mask[ratio] != nullptr) step.valid_mask[ratio] += rows.first;
    if (step.row_index[ratio] != nullptr) step.row_index[ratio] += rows.first;
  }
  return step;
}

}  // namespace dsv4rt
