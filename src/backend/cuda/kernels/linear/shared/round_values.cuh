// Rounding of eight neighbouring inputs a lane, 16 lanes a block of 128, to E4M3 times the block's power of two.
#pragma once

#include <cstdint>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/launch_check.h"
#include "base/fixed_divisor.h"
#include "base/try.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {

inline constexpr int kRoundingLanes = 16;
inline constexpr int kRoundingThreads = 256;
inline constexpr int kRoundingBlocks = kRoundingThreads / kRoundingLanes;  // blocks of 128 inputs in a thread block

// Blocks of 128 inputs that a thread loads together where the grid is to be small.
inline constexpr int kMostRoundingItems = 4;
// Blocks of 128 inputs of all tokens: kernels count them in 32 bits.
inline Result<std::int64_t> rounding_items(std::int32_t tokens, std::int32_t blocks) {
  const std::int64_t items = std::int64_t{tokens} * blocks;
  DSV4RT_RETURN_IF_ERROR(require_supported(items < FixedDivisor::kMostValues, "linear", "tokens * inputs / 128", items,
                                           "less than 2147483648"));
  return items;
}
// Thread blocks for so many blocks of inputs: most_blocks, if they can do it; 0: as many as there are.
inline std::int64_t rounding_grid(std::int64_t items, int most_blocks) {
  const auto blocks_of = [items](int each) { return (items + std::int64_t{each} - 1) / each; };
  const std::int64_t blocks = blocks_of(kRoundingBlocks);
  if (most_blocks == 0 || blocks < most_blocks) return blocks;
  const std::int64_t least = blocks_of(kRoundingBlocks * kMostRoundingItems);
  return most_blocks > least ? most_blocks : least;
}

// The lanes that the calling lane shares a block of 128 inputs with.
__device__ __forceinline__ unsigned block_members() {
  return (threadIdx.x & 16U) != 0 ? 0xffff0000U : 0x0000ffffU;
}

// A thread's share of x [tokens, 128 blocks]: eight inputs from 128 block + 8 lane on.
struct RoundingPlace {
  std::uint32_t item = blockIdx.x * kRoundingBlocks + threadIdx.x / kRoundingLanes;  // token, block
  int lane = static_cast<int>(threadIdx.x) % kRoundingLanes;
  unsigned members = block_members();  // lanes of the same block
};

// Magnitudes of a pair of BF16 values in the halves of a word, 0 for NaN and infinities (finite_amax). They order like
// their bits.
__device__ __forceinline__ std::uint32_t finite_magnitudes(std::uint32_t pair) {
  const std::uint32_t magnitudes = pair & 0x7fff7fffU;
  std::uint32_t excluded;  // the sum's sign is set where the exponent is all ones; its copies fill the half
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(excluded) : "r"(magnitudes + 0x00800080U));
  return magnitudes & ~excluded;
}

// E8M0 code of a block's scale from its pairs of BF16 values, four a lane; `members` are the block's 16 lanes.
__device__ __forceinline__ std::uint8_t block_scale_code(const std::uint32_t (&pairs)[4], unsigned members) {
  std::uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = __vmaxu2(most, finite_magnitudes(pairs[i]));
#pragma unroll
  for (int offset = kRoundingLanes / 2; offset > 0; offset /= 2) {
    most = __vmaxu2(most, __shfl_xor_sync(members, most, offset));
  }
  return e8m0_scale_for_e4m3(__uint_as_float(max(most << 16, most & 0xffff0000U)));
}

// Exact: codes of block_scale_code() lie in 105 .. 247.
__device__ __forceinline__ float reciprocal_scale(std::uint8_t scale_code) {
  return __uint_as_float((254U - scale_code) << 23);
}

// value / scale, and NaN for an infinity (round_activation_fp8): the factor is the reciprocal for finite values.
__device__ __forceinline__ float scaled(float value, float reciprocal) {
  return value * __fmaf_rn(value, 0.0F, reciprocal);
}

// E4M3 codes of a pair of BF16 values: nearest, ties to even, saturating; NaN loses its sign, infinities become NaN.
__device__ __forceinline__ std::uint16_t encode_pair(std::uint32_t pair, float reciprocal) {
  const float low = scaled(__uint_as_float(pair << 16), reciprocal);
  const float high = scaled(__uint_as_float(pair & 0xffff0000U), reciprocal);
  std::uint16_t codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
}

// Eight codes of a lane, and the code of its block's scale.
struct EncodedInputs {
  uint2 codes;
  std::uint8_t scale_code;
  [[nodiscard]] __device__ __forceinline__ float scale() const {
    return __uint_as_float(static_cast<std::uint32_t>(scale_code) << 23);
  }
};
__device__ __forceinline__ EncodedInputs encode_block(uint4 packed, unsigned members) {
  const std::uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  const std::uint8_t scale_code = block_scale_code(pairs, members);
  const float reciprocal = reciprocal_scale(scale_code);
  std::uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = encode_pair(pairs[i], reciprocal);
  return {make_uint2(codes[0] | codes[1] << 16, codes[2] | codes[3] << 16), scale_code};
}

// BF16 values in pairs; the result is BF16 too: E4M3 has four significant bits.
__device__ __forceinline__ uint4 round_block(uint4 packed, unsigned members) {
  const std::uint32_t pairs[4] = {packed.x, packed.y, packed.z, packed.w};
  const std::uint8_t scale_code = block_scale_code(pairs, members);
  const float reciprocal = reciprocal_scale(scale_code);
  const float scale = __uint_as_float(static_cast<std::uint32_t>(scale_code) << 23);
  std::uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t halves;  // the two codes as FP16, which holds every E4M3 value
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(encode_pair(pairs[i], reciprocal)));
    const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&halves));
    out[i] = __byte_perm(__float_as_uint(rounded.x * scale), __float_as_uint(rounded.y * scale), 0x7632);
  }
  return make_uint4(out[0], out[1], out[2], out[3]);
}

}  // namespace dsv4rt::cuda
