// Words of four neighbouring lanes, exchanged.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

// Word j of lane i of four to word i of lane j. All lanes of a warp call it.
__device__ __forceinline__ void transpose_of_four_lanes(std::uint32_t (&words)[4], int lane) {
  const bool odd = (lane & 1) != 0;
  const bool upper = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? words[i] : words[i + 1], 1);
    words[i] = odd ? other : words[i];
    words[i + 1] = odd ? words[i + 1] : other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? words[i] : words[i + 2], 2);
    words[i] = upper ? other : words[i];
    words[i + 2] = upper ? words[i + 2] : other;
  }
}

}  // namespace dsv4rt::cuda
