// Rows that tokens have completed, out of the cache and into it, packed in one block in between.
#include "backend/cpu/copy_row.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/paged_rows.h"
#include "backend/cpu/step_tokens.h"
#include "backend/move_checks.h"
#include "base/check.h"
#include "base/try.h"

namespace dsv4rt::cpu {

Status CpuOps::copy_finished_rows(RowDirection direction, const FinishedRowsParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_finished_rows(params));
  const StepView& step = params.step;
  const std::uint8_t* const valid = step.valid_mask[params.ratio_class];
  const std::int32_t* const row_index = step.row_index[params.ratio_class];
  const BlockShape& shape = params.rows.shape;
  return team_.parallel_for(step.counts.tokens, [&](std::int64_t begin, std::int64_t end, int) {
    for (auto token = static_cast<std::int32_t>(begin); token < end; ++token) {
      const TokenPosition place = token_position(step, token);
      if (!place.real || valid[token] == 0) continue;
      const std::int32_t row = row_index[token];
      std::byte* const block = params.rows.blocks + block_offset(params.rows, place.slot, row);
      const std::int32_t block_row = row % shape.rows;
      const std::int32_t packed_row =
          packed_place(token, params.ratio, step.token_sequence[token], step.token_sequence[0]);
      DSV4RT_CHECK(packed_row < params.packed_shape.rows);
      if (direction == RowDirection::kFromCache) {
        copy_row(shape, block, block_row, params.packed_shape, params.packed, packed_row);
      } else {
        copy_row(params.packed_shape, params.packed, packed_row, shape, block, block_row);
      }
    }
  });
}

}  // namespace dsv4rt::cpu
