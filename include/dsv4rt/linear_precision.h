// How weights in FP8 multiply inputs that are rounded to FP8.
#pragma once

#include <cstdint>
#include <string_view>

namespace dsv4rt {

enum class LinearPrecision : std::uint8_t {
  // Every product is exact and added in FP32: weights are widened to BF16.
  kExact,
  // The matrix instruction multiplies E4M3 by E4M3 and adds 128 inputs with about 14 bits; those sums are scaled and
  // added in FP32. Outputs of attention are rounded to E4M3, too, before their first projection.
  kFp8,
};

// "exact", "fp8".
constexpr std::string_view linear_precision_name(LinearPrecision precision) noexcept {
  return precision == LinearPrecision::kFp8 ? "fp8" : "exact";
}

}  // namespace dsv4rt
