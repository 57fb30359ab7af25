// Random weight matrices in every checkpoint encoding, with their exact values, for linear tests.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "base/bfloat16.h"
#include "checkpoint/host_linear.h"
#include "layout/codec_e2m1.h"
#include "layout/codec_e4m3.h"

namespace dsv4rt::test {

// A stored matrix and the FP32 value of every element (block scale included, global scale not).
struct TestMatrix {
  std::vector<std::byte> weight;
  std::vector<std::byte> scale;
  std::vector<float> values;  // [rows, in]
  HostLinear host;            // views of the above: do not copy the matrix

  TestMatrix() = default;
  TestMatrix(const TestMatrix&) = delete;
  TestMatrix& operator=(const TestMatrix&) = delete;
};

inline std::uint8_t random_byte(std::mt19937& random) { return static_cast<std::uint8_t>(random() & 0xff); }

// A random BF16 with an exponent in [min_exponent, max_exponent].
inline bf16 random_bf16(std::mt19937& random, int min_exponent, int max_exponent) {
  const auto bits = static_cast<std::uint32_t>(random());
  const auto choices = static_cast<std::uint32_t>(max_exponent - min_exponent + 1);
  const int exponent = min_exponent + static_cast<int>((bits >> 8) % choices);
  const std::uint32_t mantissa = bits & 0x7f;
  return {static_cast<std::uint16_t>((bits >> 31) << 15 | static_cast<std::uint32_t>(exponent + 127) << 7 | mantissa)};
}

inline void fill_matrix(TestMatrix& matrix, WeightEncoding encoding, ActivationRounding activation, std::int64_t rows,
                        std::int64_t in, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto count = static_cast<std::size_t>(rows * in);
  const auto columns = static_cast<std::size_t>(in);
  matrix.values.resize(count);
  HostLinear& host = matrix.host;
  host.name = "test.weight";
  host.encoding = encoding;
  host.activation = activation;
  host.out_features = rows;
  host.in_features = in;
  if (encoding == WeightEncoding::kBf16) {
    matrix.weight.resize(count * 2);
    for (std::size_t i = 0; i < count; ++i) {
      const bf16 value = random_bf16(random, -8, 2);
      std::memcpy(matrix.weight.data() + i * 2, &value, 2);
      matrix.values[i] = to_float(value);
    }
  } else if (encoding == WeightEncoding::kFp8Block128) {
    const std::size_t blocks = (columns + 127) / 128;
    matrix.weight.resize(count);
    matrix.scale.resize((static_cast<std::size_t>(rows) + 127) / 128 * blocks);
    for (std::byte& scale : matrix.scale) scale = static_cast<std::byte>(127 - 12 + random() % 16);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint8_t code = random_byte(random);
      if ((code & 0x7f) == kE4m3NanCode) code = 0;
      matrix.weight[i] = std::byte{code};
      const auto scale = std::to_integer<int>(matrix.scale[i / columns / 128 * blocks + i % columns / 128]);
      matrix.values[i] = std::ldexp(decode_e4m3(code), scale - 127);
    }
  } else {
    matrix.weight.resize(count / 2);
    matrix.scale.resize(count / 16);
    for (std::byte& scale : matrix.scale) {
      std::uint8_t code = random_byte(random);
      if ((code & 0x7f) == kE4m3NanCode) code = 1;
      scale = std::byte{code};
    }
    for (std::size_t i = 0; i < count / 2; ++i) {
      const std::uint8_t pair = random_byte(random);
      matrix.weight[i] = std::byte{pair};
      const float scale = decode_e4m3(std::to_integer<std::uint8_t>(matrix.scale[i / 8]));
      matrix.values[2 * i] = decode_e2m1(pair) * scale;
      matrix.values[2 * i + 1] = decode_e2m1(static_cast<std::uint8_t>(pair >> 4)) * scale;
    }
    host.global_scale = 0.37F;
  }
  host.weight = matrix.weight;
  host.scale = matrix.scale;
}

inline float flush_to_zero(float value) { return std::fabs(value) < 0x1p-126F ? std::copysign(0.0F, value) : value; }

// The promised chain: fused multiply-adds over inputs 1, 0, 3, 2, ... with subnormals as zero.
inline float chain(const float* weight, const float* x, std::int64_t in) {
  float sum = 0;
  for (std::int64_t k = 0; k < in; k += 2) {
    if (k + 1 < in) sum = flush_to_zero(std::fma(flush_to_zero(weight[k + 1]), flush_to_zero(x[k + 1]), sum));
    sum = flush_to_zero(std::fma(flush_to_zero(weight[k]), flush_to_zero(x[k]), sum));
  }
  return sum;
}

}  // namespace dsv4rt::test
