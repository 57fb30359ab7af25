#include "layout/row_format.h"

#include <array>
#include <string>
#include <type_traits>
#include <utility>

#include "base/arithmetic.h"
#include "base/check.h"
#include "base/message_text.h"
#include "layout/bf16_row.h"
#include "layout/fp8_ds_mla.h"
#include "layout/fp8_row.h"
#include "layout/index_key.h"
#include "layout/nvfp4_row.h"

namespace dsv4rt {
namespace {

constexpr std::array<std::pair<std::string_view, RowFormat>, 4> kRowFormats = {{
    {"fp8_ds_mla", RowFormat::kFp8DsMla},
    {"fp8_row", RowFormat::kFp8Row},
    {"nvfp4", RowFormat::kNvfp4},
    {"bf16", RowFormat::kBf16},
}};

constexpr std::array<std::pair<std::string_view, IndexKeyFormat>, 4> kIndexKeyFormats = {{
    {"mxfp4", IndexKeyFormat::kMxfp4},
    {"nvfp4", IndexKeyFormat::kNvfp4},
    {"fp8", IndexKeyFormat::kFp8},
    {"bf16", IndexKeyFormat::kBf16},
}};

// Calls visitor(Row{}) with the traits struct of `format`; the only switch over row formats.
template <class Visitor>
auto visit_format(RowFormat format, Visitor&& visitor) {
  switch (format) {
    case RowFormat::kFp8DsMla:
      return visitor(Fp8DsMlaRow{});
    case RowFormat::kFp8Row:
      return visitor(Fp8Row{});
    case RowFormat::kNvfp4:
      return visitor(Nvfp4Row{});
    case RowFormat::kBf16:
      return visitor(Bf16Row{});
  }
  fail_check("format is a RowFormat", __FILE__, __LINE__);
}

template <class Visitor>
auto visit_format(IndexKeyFormat format, Visitor&& visitor) {
  switch (format) {
    case IndexKeyFormat::kMxfp4:
      return visitor(Mxfp4Key{});
    case IndexKeyFormat::kNvfp4:
      return visitor(Nvfp4Key{});
    case IndexKeyFormat::kFp8:
      return visitor(Fp8Key{});
    case IndexKeyFormat::kBf16:
      return visitor(Bf16Key{});
  }
  fail_check("format is an IndexKeyFormat", __FILE__, __LINE__);
}

template <class Format>
BlockShape shape_of(Format format, std::int32_t rows) {
  DSV4RT_CHECK(rows >= 1);
  return visit_format(format, [rows]<class Row>(Row) {
    BlockShape shape;
    shape.rows = rows;
    shape.data_bytes = Row::kDataBytes;
    shape.scale_bytes = Row::kScaleBytes;
    shape.block_bytes =
        round_up<std::int64_t>(std::int64_t{rows} * shape.row_bytes(), std::int64_t{Row::kBlockAlignmentBytes});
    return shape;
  });
}

// A shape of another format, or a row outside the block, would write foreign bytes.
template <class Row>
void check_row(const BlockShape& shape, std::int64_t row) {
  DSV4RT_CHECK(shape.data_bytes == Row::kDataBytes && shape.scale_bytes == Row::kScaleBytes);
  DSV4RT_CHECK(row >= 0 && row < shape.rows);
}

template <class Format>
void encode_as(Format format, const BlockShape& shape, const float* values, std::byte* block, std::int64_t row) {
  visit_format(format, [&]<class Row>(Row) {
    check_row<Row>(shape, row);
    Row::encode(values, block + shape.data_offset(row), block + shape.scale_offset(row));
  });
}

template <class Format>
void decode_as(Format format, const BlockShape& shape, const std::byte* block, std::int64_t row, float* values) {
  visit_format(format, [&]<class Row>(Row) {
    check_row<Row>(shape, row);
    Row::decode(block + shape.data_offset(row), block + shape.scale_offset(row), values);
  });
}

template <class Table, class Format>
std::string_view name_in(const Table& table, Format format) noexcept {
  for (const auto& [name, candidate] : table) {
    if (candidate == format) return name;
  }
  return "unknown";
}

template <class Format, class Table>
Result<Format> format_in(const Table& table, std::string_view what, std::string_view name) {
  std::string accepted;
  for (const auto& [candidate, format] : table) {
    if (candidate == name) return format;
    accepted += accepted.empty() ? "" : ", ";
    accepted += candidate;
  }
  return Status(StatusCode::kInvalidArgument,
                std::string(what) + " " + quote(name) + " is unknown; accepted: " + accepted);
}

}  // namespace

BlockShape block_shape(RowFormat format, std::int32_t rows) {
  return shape_of(format, rows);
}
BlockShape block_shape(IndexKeyFormat format, std::int32_t rows) {
  return shape_of(format, rows);
}

std::string_view row_format_name(RowFormat format) noexcept {
  return name_in(kRowFormats, format);
}
std::string_view index_key_format_name(IndexKeyFormat format) noexcept {
  return name_in(kIndexKeyFormats, format);
}

Result<RowFormat> row_format_from_name(std::string_view name) {
  return format_in<RowFormat>(kRowFormats, "row format", name);
}

Result<IndexKeyFormat> index_key_format_from_name(std::string_view name) {
  return format_in<IndexKeyFormat>(kIndexKeyFormats, "index key format", name);
}

void encode_row(RowFormat format, const BlockShape& shape, const float* values, std::byte* block, std::int64_t row) {
  encode_as(format, shape, values, block, row);
}

void encode_row(IndexKeyFormat format, const BlockShape& shape, const float* values, std::byte* block,
                std::int64_t row) {
  encode_as(format, shape, values, block, row);
}

void decode_row(RowFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row, float* values) {
  decode_as(format, shape, block, row, values);
}

void decode_row(IndexKeyFormat format, const BlockShape& shape, const std::byte* block, std::int64_t row,
                float* values) {
  decode_as(format, shape, block, row, values);
}

}  // namespace dsv4rt
