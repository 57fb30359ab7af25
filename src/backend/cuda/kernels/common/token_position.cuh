// The place of a token of the step, read by a kernel.
#pragma once

#include <cstdint>

#include "step/step_metadata.h"

namespace dsv4rt::cuda {

struct TokenPosition {
  bool real = false;          // false: padding; the other fields are then zero
  std::int32_t sequence = 0;  // number of its sequence in the step
  std::int32_t position = 0;  // position of the token in its sequence
  std::int32_t slot = 0;      // state slot and block-table row of its sequence
  std::int32_t start = 0;     // position of the sequence's first token of the step
  // Rows of the whole step, also where the view is a part of one (rows_of_step) and `token` counts the part's.
  std::int32_t first_token = 0;  // row of x of that token
  std::int32_t end_token = 0;    // row of x after the sequence's last token of the step

  // Row of x, in the whole step, of `other_position`, which lies within the step.
  [[nodiscard]] __device__ std::int32_t token_of(std::int32_t other_position) const {
    return first_token + (other_position - start);
  }
};

__device__ inline TokenPosition token_position(const StepView& step, std::int64_t token) {
  const std::int32_t sequence = step.token_sequence[token];
  if (sequence < 0) return {};
  return {.real = true,
          .sequence = sequence,
          .position = step.token_position[token],
          .slot = step.sequence_slot[sequence],
          .start = step.sequence_start[sequence],
          .first_token = step.sequence_first_token[sequence],
          .end_token = step.sequence_first_token[sequence + 1]};
}

}  // namespace dsv4rt::cuda
