// Weights and inputs of linear layers on the GPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "gpu/support/gpu.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {

struct Encoding {
  const char* name;
  WeightEncoding weight;
  ActivationRounding activation;
};

inline constexpr Encoding kEncodings[] = {
    {"bf16", WeightEncoding::kBf16, ActivationRounding::kNone},
    {"bf16_rounded", WeightEncoding::kBf16, ActivationRounding::kFp8Block128},
    {"fp8", WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128},
    {"fp8_wide", WeightEncoding::kFp8Block128, ActivationRounding::kNone},
    {"nvfp4", WeightEncoding::kNvfp4, ActivationRounding::kNone},
    {"nvfp4_rounded", WeightEncoding::kNvfp4, ActivationRounding::kFp8Block128},
};

inline std::vector<bf16> random_inputs(std::int64_t count, std::uint32_t seed, int min_exponent = -6,
                                       int max_exponent = 3) {
  std::mt19937 random(seed);
  std::vector<bf16> x(static_cast<std::size_t>(count));
  for (bf16& value : x) value = random_bf16(random, min_exponent, max_exponent);
  return x;
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace dsv4rt::test
