// Host-side refusals before a launch.
#pragma once

#include <cstdint>
#include <string>

#include "backend/ops.h"
#include "backend/require.h"
#include "base/try.h"
#include "dsv4rt/status.h"
#include "layout/row_format.h"

namespace dsv4rt::cuda {

// The contract allows it, the kernel does not.
inline Status require_supported(bool holds, const char* operation, const char* field, std::int64_t value,
                                const char* accepted) {
  return holds ? Status{} : refused(StatusCode::kUnsupported, operation, field, value, accepted);
}

inline Status require_aligned(const void* pointer, std::uintptr_t alignment_bytes, const char* operation,
                              const char* field) {
  const std::uintptr_t excess = reinterpret_cast<std::uintptr_t>(pointer) % alignment_bytes;
  if (pointer != nullptr && excess == 0) return {};
  return {StatusCode::kInvalidArgument, std::string(operation) + ": " + field +
                                            (pointer == nullptr ? " is null" : " is misaligned") +
                                            "; accepted: multiples of " + std::to_string(alignment_bytes) + " B"};
}

// Rows of codes for `tokens` tokens, of which `columns` from `column` on are used. `field`: the parameter's name.
inline Status check_encoded_rows(const EncodedRows& rows, std::int64_t column, std::int64_t columns,
                                 std::int32_t tokens, const char* operation, const std::string& field) {
  constexpr std::int64_t kMostBlocks = 32767;  // kernels number them in 16 bits
  const auto part = [&field](const char* name) { return field + name; };
  DSV4RT_RETURN_IF_ERROR(require_aligned(rows.codes, 16, operation, part(".codes").c_str()));
  DSV4RT_RETURN_IF_ERROR(require_aligned(rows.scales, 16, operation, part(".scales").c_str()));
  DSV4RT_RETURN_IF_ERROR(require(rows.scale_stride >= encoded_scale_stride(tokens) && rows.scale_stride % 4 == 0,
                                 operation, part(".scale_stride").c_str(), rows.scale_stride,
                                 "encoded_scale_stride() of the step's tokens or of more"));
  DSV4RT_RETURN_IF_ERROR(
      require(rows.width % kEncodedBlockValues == 0 && rows.width / kEncodedBlockValues <= kMostBlocks, operation,
              part(".width").c_str(), rows.width, "multiples of 128, 32,767 of them at most"));
  return require(column >= 0 && column % kEncodedBlockValues == 0 && column <= rows.width - columns, operation,
                 part("_column").c_str(), column, "multiples of 128 from which on there are the columns used");
}

// Row parts of a shape that is not the format's would land on other rows.
template <class Format>
Status require_shape(const BlockShape& shape, Format format, const char* operation, const char* field) {
  if (shape.rows >= 1) {
    const BlockShape expected = block_shape(format, shape.rows);
    if (shape.data_bytes == expected.data_bytes && shape.scale_bytes == expected.scale_bytes) return {};
  }
  return {StatusCode::kInvalidArgument, std::string(operation) + ": " + field + " has " + std::to_string(shape.rows) +
                                            " rows of " + std::to_string(shape.data_bytes) + " + " +
                                            std::to_string(shape.scale_bytes) +
                                            " B; accepted: the shape of the row format"};
}

}  // namespace dsv4rt::cuda
