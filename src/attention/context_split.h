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

// A step's rows in 2n pieces for n ranks. Rank r has pieces r and 2n - 1 - r: what a token reads grows with its
// position, and so every rank has as much to do.
class ContextSplit {
 public:
  ContextSplit(std::int32_t tokens, std::int32_t ranks) : tokens_(tokens), ranks_(ranks) {}

  [[nodiscard]] std::int32_t tokens() const noexcept { return tokens_; }
  [[nodiscard]] std::int32_t pieces() const noexcept { return 2 * ranks_; }
  // Pieces begin at multiples of 16 rows, where every array of the step is aligned for a device; some may be empty.
  [[nodiscard]] RowRange piece(std::int32_t index) const noexcept {
    const std::int32_t first = bound(index);
    return {first, bound(index + 1) - first};
  }
  [[nodiscard]] std::int32_t owner(std::int32_t index) const noexcept {
    return index < ranks_ ? index : pieces() - 1 - index;
  }
  [[nodiscard]] std::array<RowRange, 2> of_rank(std::int32_t rank) const noexcept {
    return {piece(rank), piece(pieces() - 1 - rank)};
  }

 private:
  [[nodiscard]] std::int32_t bound(std::int32_t index) const noexcept {
    if (index == pieces()) return tokens_;
    constexpr std::int64_t kRows = 16;
    return static_cast<std::int32_t>(std::int64_t{tokens_} * index / pieces() / kRows * kRows);
  }

  std::int32_t tokens_;
  std::int32_t ranks_;
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
