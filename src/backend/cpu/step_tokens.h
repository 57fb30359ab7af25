// The place of a token of the step: its sequence, slot and position.
#pragma once

#include <cstdint>

#include "step/step_metadata.h"

namespace dsv4rt::cpu {

struct TokenPosition {
  bool real = false;             // false: padding; the other fields are then zero
  std::int32_t position = 0;     // position of the token in its sequence
  std::int32_t slot = 0;         // state slot and block-table row of its sequence
  std::int32_t start = 0;        // position of the sequence's first token of the step
  std::int32_t first_token = 0;  // row of x of that token

  // Row of x of `other_position`, which lies within the step.
  [[nodiscard]] std::int32_t token_of(std::int32_t other_position) const {
    return first_token + (other_position - start);
  }
};

inline TokenPosition token_position(const StepView& step, std::int64_t token) {
  const std::int32_t sequence = step.token_sequence[token];
  if (sequence < 0) return {};
  return {.real = true,
          .position = step.token_position[token],
          .slot = step.sequence_slot[sequence],
          .start = step.sequence_start[sequence],
          .first_token = step.sequence_first_token[sequence]};
}

// The step's last `rows` tokens of a sequence: rows of x [begin, end).
struct TokenRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

inline TokenRange last_tokens(const StepView& step, std::int64_t sequence, std::int32_t rows) {
  const std::int32_t first = step.sequence_first_token[sequence];
  const std::int32_t end = step.sequence_first_token[sequence + 1];
  return {.begin = end - first > rows ? end - rows : first, .end = end};
}

}  // namespace dsv4rt::cpu
