// Division by a number that the host knows, for kernels: a product and a shift in place of twenty instructions or more.
#pragma once

#include <bit>
#include <cstdint>

namespace dsv4rt {

// Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994), figure 4.1, for 32 bits.
class FixedDivisor {
 public:
  static constexpr std::int64_t kMostValues = std::int64_t{1} << 31;  // values below this can be divided

  FixedDivisor() = default;
  // Precondition: 1 <= divisor < kMostValues.
  constexpr explicit FixedDivisor(std::int32_t divisor)
      : divisor_(static_cast<std::uint32_t>(divisor)), shift_(std::bit_width(divisor_ - 1)) {
    const std::uint64_t power = std::uint64_t{1} << static_cast<unsigned>(shift_);
    multiplier_ = static_cast<std::uint32_t>(((power - divisor_) << 32U) / divisor_ + 1);
  }

  // The sum has 32 bits, since `value` has 31 and the product's upper half is not greater.
  [[nodiscard]] constexpr std::uint32_t quotient(std::uint32_t value) const {
    return (static_cast<std::uint32_t>((std::uint64_t{value} * multiplier_) >> 32U) + value) >> shift_;
  }
  [[nodiscard]] constexpr std::uint32_t remainder(std::uint32_t value) const {
    return value - quotient(value) * divisor_;
  }

 private:
  std::uint32_t divisor_ = 1;
  int shift_ = 0;
  std::uint32_t multiplier_ = 1;
};

}  // namespace dsv4rt
