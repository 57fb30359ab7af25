// Linear layers on tensor cores: mma.m16n8k16 with the weights as the A operand (16 outputs) and
// tokens as the B operand (8 tokens), so that one token already fills an instruction's rows.
//
// Order of accumulation, the same for every T, token position and grid: the inputs are cut into
// kWarps consecutive segments of whole 64-input chunks; a warp accumulates its segment in input order
// (FP8: each scale block of 128 inputs in a chain of its own, then total += scale * block); the
// segments are added in order. Outputs do not depend on how many tokens a block handles.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/portable/portable_params.h"
#include "layout/codec_e4m3.h"

namespace dsv4rt::cuda {

inline constexpr int kLinearWarps = 8;
inline constexpr int kTokensPerMma = 8;
inline constexpr int kChunkInputs = 64;  // what every encoding loads in whole lane loads

// d += a * b, one m16n8k16 tile.
__device__ inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ inline std::uint32_t multiply_bf16x2(std::uint32_t values, std::uint32_t factors) {
  std::uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(values), "r"(factors));
  return product;
}

// Four E4M3 codes (little-endian) as two BF16 pairs, exactly. The exponent and mantissa bits of a code,
// moved to their place in a BF16, read as the value times 2^-120; BF16 subnormals make the E4M3 ones
// right. The NaN codes read as +-480.
__device__ inline void decode_e4m3x4(std::uint32_t codes, std::uint32_t& low, std::uint32_t& high) {
  constexpr std::uint32_t kTwoTo120 = 0x7b807b80u;
  const auto widen = [](std::uint32_t pair) {  // bytes in bits 8..15 and 24..31
    return (pair & 0x80008000u) | ((pair & 0x7f007f00u) >> 4);
  };
  low = multiply_bf16x2(widen(__byte_perm(codes, 0, 0x1404)), kTwoTo120);
  high = multiply_bf16x2(widen(__byte_perm(codes, 0, 0x3424)), kTwoTo120);
}

// Eight E2M1 codes (nibbles, low first) times one scale as four BF16 pairs, exactly: the product has at
// most 2 + 4 significant bits.
__device__ inline std::uint32_t decode_e2m1_pair(std::uint32_t nibbles) {
  // s e e m  ->  BF16 with the bits in place reads as the value times 2^-126.
  const std::uint32_t spread = (nibbles & 0xfu) | ((nibbles & 0xf0u) << 12);
  const std::uint32_t bits = ((spread & 0x00080008u) << 12) | ((spread & 0x00070007u) << 6);
  constexpr std::uint32_t kTwoTo126 = 0x7e807e80u;
  return multiply_bf16x2(bits, kTwoTo126);
}

__device__ inline std::uint32_t duplicate_bf16(float value) {
  const __nv_bfloat162 pair = __float2bfloat162_rn(value);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// The A operands of the 4 tiles of one 64-input chunk of a group.
template <WeightEncoding Encoding>
struct WeightChunk;

template <>
struct WeightChunk<WeightEncoding::kBf16> {
  uint4 tiles[4];
  __device__ void load(const PortableParams& p, int group, int chunk, int lane) {
    const auto* at = reinterpret_cast<const uint4*>(p.codes) +
                     (std::int64_t{group} * (p.padded_inputs / kTileInputs) + std::int64_t{chunk} * 4) * 32 + lane;
#pragma unroll
    for (int t = 0; t < 4; ++t) tiles[t] = __ldg(at + t * 32);
  }
  __device__ void decode(int tile, std::uint32_t (&a)[4]) const {
    a[0] = tiles[tile].x;
    a[1] = tiles[tile].y;
    a[2] = tiles[tile].z;
    a[3] = tiles[tile].w;
  }
};

template <>
struct WeightChunk<WeightEncoding::kFp8Block128> {
  uint4 pairs[2];
  __device__ void load(const PortableParams& p, int group, int chunk, int lane) {
    const auto* at = reinterpret_cast<const uint4*>(p.codes) +
                     (std::int64_t{group} * (p.padded_inputs / 32) + std::int64_t{chunk} * 2) * 32 + lane;
#pragma unroll
    for (int t = 0; t < 2; ++t) pairs[t] = __ldg(at + t * 32);
  }
  __device__ void decode(int tile, std::uint32_t (&a)[4]) const {
    const uint4& pair = pairs[tile / 2];
    decode_e4m3x4(tile % 2 == 0 ? pair.x : pair.z, a[0], a[1]);
    decode_e4m3x4(tile % 2 == 0 ? pair.y : pair.w, a[2], a[3]);
  }
};

template <>
struct WeightChunk<WeightEncoding::kNvfp4> {
  uint4 codes;
  float scale[4][2];  // scales of the lane's two rows, per tile
  __device__ void load(const PortableParams& p, int group, int chunk, int lane) {
    codes = __ldg(reinterpret_cast<const uint4*>(p.codes) +
                  (std::int64_t{group} * (p.padded_inputs / 64) + chunk) * 32 + lane);
    const auto* at = reinterpret_cast<const std::uint8_t*>(p.scales) +
                     (std::int64_t{group} * (p.padded_inputs / kTileInputs) + std::int64_t{chunk} * 4) * kTileRows;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      scale[t][0] = decode_e4m3(__ldg(at + t * kTileRows + lane / 4));
      scale[t][1] = decode_e4m3(__ldg(at + t * kTileRows + lane / 4 + 8));
    }
  }
  __device__ void decode(int tile, std::uint32_t (&a)[4]) const {
    const std::uint32_t word = tile == 0 ? codes.x : tile == 1 ? codes.y : tile == 2 ? codes.z : codes.w;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // pairs 0 and 2 belong to the first row
      a[pair] = multiply_bf16x2(decode_e2m1_pair(word >> (8 * pair)), duplicate_bf16(scale[tile][pair & 1]));
    }
  }
};

// One block: 16 outputs for up to kTokenTiles * 8 tokens from blockIdx.y * that on.
template <WeightEncoding Encoding, int kTokenTiles, bool kFloatOutput>
__global__ __launch_bounds__(kLinearWarps * 32) void linear_portable_kernel(const PortableParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = static_cast<int>(blockIdx.x);
  const int first_token = static_cast<int>(blockIdx.y) * kTokenTiles * kTokensPerMma;

  const int chunks = p.padded_inputs / kChunkInputs;
  // Segments of whole scale blocks (two chunks), as equal as can be; fixed by the inputs alone.
  const int blocks = (chunks + 1) / 2;
  const int begin = blocks * warp / kLinearWarps * 2;
  const int end = min(blocks * (warp + 1) / kLinearWarps * 2, chunks);

  float total[kTokenTiles][4] = {};
  float block_sum[kTokenTiles][4] = {};
  const auto* scales = reinterpret_cast<const float*>(p.scales) + std::int64_t{group} * ((p.inputs + 127) / 128);

  const int token_in_tile = lane / 4;
  const int pair_column = 2 * (lane % 4);
  WeightChunk<Encoding> weights;
  if (begin < end) weights.load(p, group, begin, lane);
  for (int chunk = begin; chunk < end; ++chunk) {
    WeightChunk<Encoding> next;
    if (chunk + 1 < end) next.load(p, group, chunk + 1, lane);
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      std::uint32_t a[4];
      weights.decode(tile, a);
      const int k = chunk * kChunkInputs + tile * kTileInputs + pair_column;
#pragma unroll
      for (int j = 0; j < kTokenTiles; ++j) {
        const int token = first_token + j * kTokensPerMma + token_in_tile;
        std::uint32_t b[2] = {0, 0};
        if (token < p.tokens) {
          const bf16* row = p.x + token * p.x_stride;
          if (k < p.inputs) b[0] = *reinterpret_cast<const std::uint32_t*>(row + k);
          if (k + 8 < p.inputs) b[1] = *reinterpret_cast<const std::uint32_t*>(row + k + 8);
        }
        if constexpr (Encoding == WeightEncoding::kFp8Block128) {
          mma_bf16(block_sum[j], a, b);
        } else {
          mma_bf16(total[j], a, b);
        }
      }
    }
    if constexpr (Encoding == WeightEncoding::kFp8Block128) {
      if (chunk % 2 == 1 || chunk + 1 == chunks) {
        const float scale = __ldg(scales + chunk / 2);
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            total[j][i] = __fmaf_rn(scale, block_sum[j][i], total[j][i]);
            block_sum[j][i] = 0.0F;
          }
        }
      }
    }
    weights = next;
  }

  // Segments in order; 16 outputs x 8 tokens at a time keep shared memory small.
  __shared__ float partial[kLinearWarps][4][32];
#pragma unroll 1
  for (int j = 0; j < kTokenTiles; ++j) {
    if (first_token + j * kTokensPerMma >= p.tokens) break;
    __syncthreads();
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      if (t != j) continue;  // static register indices
#pragma unroll
      for (int i = 0; i < 4; ++i) partial[warp][i][lane] = total[t][i];
    }
    __syncthreads();
    if (threadIdx.x < 128) {
      const int i = static_cast<int>(threadIdx.x) / 32;
      float sum = partial[0][i][lane];
#pragma unroll
      for (int w = 1; w < kLinearWarps; ++w) sum += partial[w][i][lane];
      if constexpr (Encoding == WeightEncoding::kNvfp4) sum *= p.global_scale;
      // Accumulator i of a lane: output lane / 4 (+ 8 for i >= 2), token 2 * (lane % 4) + i % 2.
      const int output = group * kTileRows + lane / 4 + (i / 2) * 8;
      const int token = first_token + j * kTokensPerMma + pair_column + i % 2;
      if (output < p.outputs && token < p.tokens) {
        const std::int64_t at = token * p.y_stride + output;
        if constexpr (kFloatOutput) {
          static_cast<float*>(p.y)[at] = sum;
        } else {
          static_cast<__nv_bfloat16*>(p.y)[at] = __float2bfloat16_rn(sum);
        }
      }
    }
  }
}

}  // namespace dsv4rt::cuda
