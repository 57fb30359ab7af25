// Rounding of eight neighbouring inputs a lane, 16 lanes a block of 128, to E4M3 times the block's power of two.
#pragma once

#include <cstdint>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/encode_e4m3.cuh"
#include "backend/cuda/kernels/common/launch_check.h"
#include "base/fixed_divisor.h"
#include "base/try.h"

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

// E8M0 code of a block's scale from its pairs of BF16 values, four a lane; `members` are the block's 16 lanes.
__device__ __forceinline__ std::uint8_t block_scale_code(const std::uint32_t (&pairs)[4], unsigned members) {
  std::uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) most = __vmaxu2(most, finite_magnitudes(pairs[i]));
#pragma unroll
  for (int offset = kRoundingLanes / 2; offset > 0; offset /= 2) {
    most = __vmaxu2(most, __shfl_xor_sync(members, most, offset));
  }
  return scale_code_of(most);
}

// Eight codes of a lane, and the code of its block's scale.
struct EncodedInputs {
  uint2 codes;
  std::uint8_t scale_code;
  [[nodiscard]] __device__ __forceinline__ float scale() const { return scale_of_code(scale_code); }
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
  const float scale = scale_of_code(scale_code);
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
