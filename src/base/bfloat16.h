// BF16: the upper half of an FP32. Round to nearest even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace dsv4rt {

struct bf16 {
  std::uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2);

constexpr float to_float(bf16 value) {
  return std::bit_cast<float>(std::uint32_t{value.bits} << 16);
}

constexpr bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x0040u)};  // quiet NaN
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

// The FP32 value nearest to `value` that BF16 can hold.
constexpr float round_to_bf16(float value) {
  return to_float(to_bf16(value));
}

}  // namespace dsv4rt
