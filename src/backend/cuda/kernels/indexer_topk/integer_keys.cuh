// MXFP4 keys as the left operand of the matrix instruction for integers, which takes twice the dims of the one for FP16
// in the same time and reads half as many registers for them.
//
// A code is a multiple of one half up to 6, so a key whose four scales differ by no more than 2^kMostSpread is a vector
// of integers up to 48 times a power of two; operands are twice these. A query of values of two significant bits, the
// last of them no less than 2^-6 of the greatest value's first one, is one of integers up to 96 (query_loader.cuh).
// Their products and sums are exact, as those of FP16 operands are: below 2^24 nothing is rounded either way, and both
// give a score the same bits. Keys whose scales lie further apart (uneven_rows.cuh has their scores) come out as
// anything.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/indexer_topk/key_operand.cuh"

namespace dsv4rt::cuda {

inline constexpr int kMostSpread = 2;  // powers of two between a key's scales

// The positive part of a sum of products is an integer below 2^23, read as the FP32 value of the same bits: itself
// times 2^-149. Weights bring most of that back, 2^kIntegerWeightBits, so that the terms of a score are normal numbers;
// tokens with weights for which they would not be are not multiplied as integers (query_loader.cuh). The rest comes
// last.
inline constexpr int kIntegerWeightBits = 100;
// An operand is a key's value times 2^kIntegerKeyBits over its largest scale.
inline constexpr int kIntegerKeyBits = kMostSpread + 2;
// What a sum over heads is multiplied with, beside the key's largest scale.
inline constexpr float kIntegerSumFactor = 0x1p45F;
static_assert(149 - kIntegerWeightBits - kIntegerKeyBits == 45);

struct IntegerKeys {
  using Layout = Mxfp4Key;
  static constexpr OperandKind kKind = OperandKind::kInteger;
  using Fragment = KeyFragment<kIndexHeadDim / 32>;
  using Raw = KeyOperand<IndexKeyFormat::kMxfp4>::Raw;

  // Lane c holds the codes of 32 dims with one scale, from 32 c on: instruction i takes eight of them, columns
  // 4 c to 4 c + 3 and 16 + 4 c to 16 + 4 c + 3.
  static constexpr int column(int dim) { return 32 * (dim % 32 / 8) + 16 * (dim % 8 / 4) + 4 * (dim / 32) + dim % 4; }

  __device__ static Raw read(const std::byte* keys, int row, int lane) {
    return KeyOperand<IndexKeyFormat::kMxfp4>::read(keys, row, lane);
  }

  __device__ static ConvertedKeys convert(const Raw& raw, int lane, Fragment& a) {
    std::uint32_t top[2];  // the largest scale, twice
    std::int32_t room = 0;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      const std::uint32_t scales = raw.scales[below];
      const std::uint32_t pairs = __vmaxu2(scales & 0x00ff00ffU, permute_bytes(scales, 0, 0x4341U));
      top[below] = __vmaxu2(pairs, permute_bytes(pairs, 0, 0x1032U));
      const auto own = static_cast<std::int32_t>(permute_bytes(scales, 0, 0x4440U | static_cast<std::uint32_t>(lane)));
      const std::int32_t shift = own + kMostSpread - static_cast<std::int32_t>(top[below] & 0xffffU);
      room |= shift;
      convert_row(raw.codes[below], static_cast<std::uint32_t>(shift), below, a);
    }
    const std::uint32_t largest = lane % 2 == 0 ? top[0] : top[1];
    // 2^(largest - 127), see finish_score. Code 0, which the encoder of keys does not give, counts as zero.
    constexpr std::uint32_t kNan = kE8m0NanCode * 0x00010001U;
    return {__uint_as_float(largest == kNan ? 0x7fc00000U : largest << 23), room};
  }

 private:
  // Codes times 2^(shift + 2), four at a time from tables: positive codes from one, negative ones from another, each of
  // which gives zero for the other's. That is what the instruction makes of the fourth bit of a selector: eight times
  // the top bit of the byte chosen, which no byte of the tables has. Negative ones are therefore halved.
  __device__ static void convert_row(const uint4& codes, std::uint32_t shift, int below, Fragment& a) {
    constexpr std::uint32_t kLow = 0x03020100U;   // twice the values of codes 0 to 3
    constexpr std::uint32_t kHigh = 0x0c080604U;  // and of codes 4 to 7
    // The shift of a key that is not for integers may be anything.
    const std::uint32_t low = kLow << (shift & 31U);
    const std::uint32_t high = kHigh << (shift & 31U);
    const std::uint32_t positive[2] = {low + low, high + high};
    const std::uint32_t negative[2] = {0x80808000U - low, 0x80808080U - high};
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t flipped = words[i] ^ 0x88888888U;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t above = permute_bytes(positive[0], positive[1], words[i] >> (16 * half));
        const std::uint32_t under = permute_bytes(negative[0], negative[1], flipped >> (16 * half));
        a[i][2 * half + below] = (under << 1) + above;
      }
    }
  }
};

}  // namespace dsv4rt::cuda
