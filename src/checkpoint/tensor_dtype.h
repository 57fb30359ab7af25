// Element types of safetensors files: their names and sizes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace dsv4rt {

// Every type the safetensors format names. Only some are read by the loader; the others must be
// known so that tensors of other modules in the same file can be measured and skipped.
enum class TensorDtype : std::uint8_t {
  kBool,
  kF4,  // two E2M1 values a byte; the shape counts values
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// The name in a safetensors header: "BF16", "F8_E4M3", ...
std::string_view tensor_dtype_name(TensorDtype dtype) noexcept;
std::optional<TensorDtype> tensor_dtype_from_name(std::string_view name) noexcept;
// All accepted names, comma-separated, for messages.
std::string tensor_dtype_names();

// Bits of one element.
int tensor_dtype_bits(TensorDtype dtype) noexcept;

// Bytes of a tensor, or nothing when the product overflows, a dimension is negative, or sub-byte
// elements do not fill whole bytes.
std::optional<std::uint64_t> tensor_bytes(TensorDtype dtype, std::span<const std::int64_t> shape) noexcept;

}  // namespace dsv4rt
