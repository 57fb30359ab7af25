// How quantized weights are multiplied.
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
  // NVFP4 weights multiply inputs that are rounded to NVFP4, by cuBLASLt. Sums depend on the number of tokens.
  kNvfp4,
};

inline constexpr LinearPrecision kLinearPrecisions[] = {LinearPrecision::kExact, LinearPrecision::kFp8,
                                                        LinearPrecision::kNvfp4};

// "exact", "fp8", "nvfp4".
constexpr std::string_view linear_precision_name(LinearPrecision precision) noexcept {
  switch (precision) {
    case LinearPrecision::kExact:
      return "exact";
    case LinearPrecision::kFp8:
      return "fp8";
    case LinearPrecision::kNvfp4:
      return "nvfp4";
  }
  return "";
}

// Whether a product's bytes are the same whatever else a step multiplies.
constexpr bool is_batch_invariant(LinearPrecision precision) noexcept {
  return precision != LinearPrecision::kNvfp4;
}

}  // namespace dsv4rt
