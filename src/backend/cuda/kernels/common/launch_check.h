// Host-side refusals before a launch.
#pragma once

#include <cstdint>
#include <string>

#include "backend/require.h"
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
