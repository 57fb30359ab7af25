// The absolute maximum that block scales are computed from.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace dsv4rt {

// max |values[i]| over the finite values; 0 when there is none. NaN and infinities do not take part,
// so the scale of a block is always finite: an infinity then saturates to the block's largest code and
// a NaN follows the element codec's rule, while the finite neighbours keep their accuracy.
constexpr float finite_amax(const float* values, std::size_t count) {
  // Magnitudes order like their bits; an integer maximum vectorizes where a float one may not.
  constexpr std::uint32_t kInfinityBits = 0x7f800000u;
  std::uint32_t amax = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & 0x7fffffffu;
    const std::uint32_t finite = magnitude < kInfinityBits ? magnitude : 0u;
    amax = finite > amax ? finite : amax;
  }
  return std::bit_cast<float>(amax);
}

}  // namespace dsv4rt
