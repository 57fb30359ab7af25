// Integer helpers: rounding up and products that must not overflow silently.
#pragma once

#include <cstdint>
#include <optional>

namespace dsv4rt {

template <class T>
constexpr T ceil_div(T value, T divisor) {
  return static_cast<T>((value + divisor - 1) / divisor);
}

template <class T>
constexpr T round_up(T value, T multiple) {
  return static_cast<T>(ceil_div(value, multiple) * multiple);
}

// a * b, or nothing when it does not fit: for numbers read from files.
inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace dsv4rt
