#include "layout/rounding.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/check.h"
#include "layout/amax.h"
#include "layout/codec_e4m3.h"
#include "layout/codec_e8m0.h"
#include "layout/row_format.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kLargestRowBytes = 1024;  // bf16

// A block of one row on the stack.
template <class Format>
void encode_and_decode(Format format, float* values) {
  const BlockShape shape = block_shape(format, 1);
  std::array<std::byte, kLargestRowBytes> block;
  DSV4RT_CHECK(shape.row_bytes() <= static_cast<std::int32_t>(kLargestRowBytes));
  encode_row(format, shape, values, block.data(), 0);
  decode_row(format, shape, block.data(), 0, values);
}

}  // namespace

void round_through(RowFormat format, float* values) {
  encode_and_decode(format, values);
}
void round_through(IndexKeyFormat format, float* values) {
  encode_and_decode(format, values);
}

void round_activation_fp8(float* values, std::size_t count) {
  for (std::size_t first = 0; first < count; first += kActivationBlockValues) {
    const std::size_t block = std::min(kActivationBlockValues, count - first);
    float* in = values + first;
    const float scale = decode_e8m0(e8m0_scale_for_e4m3(finite_amax(in, block)));
    // Power-of-two scales from 2^-22 to 2^120: dividing equals multiplying by the reciprocal, exactly.
    const float reciprocal = 1.0f / scale;
    // E4M3 has no infinity, and the largest code would make an overflow upstream pass for a number: it becomes NaN,
    // as its product with a matrix in any other encoding soon does. For finite values the factor is the reciprocal.
    for (std::size_t i = 0; i < block; ++i) in[i] = round_e4m3(in[i] * (in[i] * 0.0f + reciprocal)) * scale;
  }
}

}  // namespace dsv4rt
