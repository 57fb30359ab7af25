// The common face of all row formats: how many bytes a block takes and where a row's parts lie.
//
// A block holds `rows` rows of one format: first all rows' data parts, then all rows' scale parts,
// then zero padding up to the format's block alignment. Interleaving data and scales row by row is
// the classic mistake; every reader and writer goes through BlockShape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

struct BlockShape {
  std::int32_t rows = 0;
  std::int32_t data_bytes = 0;   // per row, in the data part
  std::int32_t scale_bytes = 0;  // per row, in the scale part (0: none)
  std::int64_t block_bytes = 0;  // padded size of the block

  [[nodiscard]] constexpr std::int64_t data_offset(std::int64_t row) const { return row * data_bytes; }
  [[nodiscard]] constexpr std::int64_t scale_offset(std::int64_t row) const {
    return std::int64_t{rows} * data_bytes + row * scale_bytes;
  }
  // Unpadded bytes of one row, the figure that budgets are stated in.
  [[nodiscard]] constexpr std::int32_t row_bytes() const { return data_bytes + scale_bytes; }
};

// rows >= 1. Per-format details: fp8_ds_mla.h, fp8_row.h, nvfp4_row.h, bf16_row.h, index_key.h.
BlockShape block_shape(RowFormat format, std::int32_t rows);
BlockShape block_shape(IndexKeyFormat format, std::int32_t rows);

std::string_view row_format_name(RowFormat format) noexcept;
std::string_view index_key_format_name(IndexKeyFormat format) noexcept;
// kInvalidArgument listing the accepted names.
Result<RowFormat> row_format_from_name(std::string_view name);
Result<IndexKeyFormat> index_key_format_from_name(std::string_view name);

// Encodes one row of FP32 values into `block` at `row`; scalar reference. `values` has kHeadDim
// (RowFormat) or kIndexHeadDim (IndexKeyFormat) entries, already rounded to BF16 by the caller
// where the model says so. Writes exactly the row's data and scale bytes.
void encode_row(RowFormat format, const BlockShape& shape, const float* values, std::byte* block, std::int64_t row);
void encode_row(IndexKeyFormat format, const BlockShape& shape, const float* values, std::byte* block,
                std::int64_t row);
// Inverse: the FP32 value of every code times its scale (exact for every format but fp8_row, where it
// is the correctly rounded FP32 product).
void decode_row(RowFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row, float* values);
void decode_row(IndexKeyFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row,
                float* values);

}  // namespace dsv4rt
