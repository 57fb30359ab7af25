// How the tile kernel's consumers write outputs: 16 bytes of a token's, and fragments turned so that they lie together.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// 16 bytes; as an ordinary assignment the compiler makes four stores of it.
__device__ __forceinline__ void store_unit(__nv_bfloat16* to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(to)), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}

// 16 outputs of 16 tokens as BF16, a token's outputs side by side. Lane l names where row l % 8 of matrix l / 8 goes:
// 8 tokens, outputs 0 .. 7 and 8 .. 15, then the next 8 tokens.
__device__ __forceinline__ void store_transposed(std::uint32_t at, float4 low, float4 high) {
  const auto pack = [](float first, float second) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&pair);
  };
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at),
               "r"(pack(low.x, low.y)), "r"(pack(low.z, low.w)), "r"(pack(high.x, high.y)), "r"(pack(high.z, high.w))
               : "memory");
}

#endif  // sm_90a

}  // namespace dsv4rt::cuda
