#include "checkpoint/tensor_dtype.h"

#include <array>
#include <cstddef>

#include "base/arithmetic.h"
#include "base/enum_rows.h"

namespace dsv4rt {
namespace {

struct DtypeRow {
  TensorDtype dtype;
  std::string_view name;
  int bits;
};

// Listed in the order of the enumeration, so that a dtype is its own index.
constexpr std::array kDtypes = {
    DtypeRow{TensorDtype::kBool, "BOOL", 8},
    DtypeRow{TensorDtype::kF4, "F4", 4},
    DtypeRow{TensorDtype::kF6E2M3, "F6_E2M3", 6},
    DtypeRow{TensorDtype::kF6E3M2, "F6_E3M2", 6},
    DtypeRow{TensorDtype::kU8, "U8", 8},
    DtypeRow{TensorDtype::kI8, "I8", 8},
    DtypeRow{TensorDtype::kF8E5M2, "F8_E5M2", 8},
    DtypeRow{TensorDtype::kF8E4M3, "F8_E4M3", 8},
    DtypeRow{TensorDtype::kF8E8M0, "F8_E8M0", 8},
    DtypeRow{TensorDtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    DtypeRow{TensorDtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    DtypeRow{TensorDtype::kI16, "I16", 16},
    DtypeRow{TensorDtype::kU16, "U16", 16},
    DtypeRow{TensorDtype::kF16, "F16", 16},
    DtypeRow{TensorDtype::kBf16, "BF16", 16},
    DtypeRow{TensorDtype::kI32, "I32", 32},
    DtypeRow{TensorDtype::kU32, "U32", 32},
    DtypeRow{TensorDtype::kF32, "F32", 32},
    DtypeRow{TensorDtype::kC64, "C64", 64},
    DtypeRow{TensorDtype::kF64, "F64", 64},
    DtypeRow{TensorDtype::kI64, "I64", 64},
    DtypeRow{TensorDtype::kU64, "U64", 64},
};

static_assert(rows_match(kDtypes, &DtypeRow::dtype, TensorDtype::kU64));

}  // namespace

std::string_view tensor_dtype_name(TensorDtype dtype) noexcept {
  return kDtypes[static_cast<std::size_t>(dtype)].name;
}

int tensor_dtype_bits(TensorDtype dtype) noexcept {
  return kDtypes[static_cast<std::size_t>(dtype)].bits;
}

std::optional<TensorDtype> tensor_dtype_from_name(std::string_view name) noexcept {
  for (const DtypeRow& row : kDtypes) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string tensor_dtype_names() {
  std::string out;
  for (const DtypeRow& row : kDtypes) {
    if (!out.empty()) out += ", ";
    out += row.name;
  }
  return out;
}

std::optional<std::uint64_t> tensor_bytes(TensorDtype dtype, std::span<const std::int64_t> shape) noexcept {
  std::uint64_t elements = 1;
  for (const std::int64_t dim : shape) {
    if (dim < 0) return std::nullopt;
    const auto product = checked_multiply(elements, static_cast<std::uint64_t>(dim));
    if (!product) return std::nullopt;
    elements = *product;
  }
  const auto bits = checked_multiply(elements, static_cast<std::uint64_t>(tensor_dtype_bits(dtype)));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

}  // namespace dsv4rt
