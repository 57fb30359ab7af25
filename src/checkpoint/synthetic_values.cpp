#include "checkpoint/synthetic_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "base/arithmetic.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kBlock = 128;
constexpr std::uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;
constexpr std::array<float, 3> kGains = {0.5F, 1.0F, 1.5F};
// Tells the gains' stream from the values'.
constexpr std::uint64_t kGainSeedMask = 0x6761696e73000000u;

// The output function of splitmix64 (Steele, Lea, Flood 2014).
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// FNV-1a, 64 bits.
constexpr std::uint64_t hash_name(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

}  // namespace

SyntheticStream::SyntheticStream(std::uint64_t seed, std::string_view name) noexcept
    : key_(mix(mix(seed + kGoldenGamma) ^ hash_name(name))) {}

std::uint64_t SyntheticStream::bits(std::uint64_t index) const noexcept {
  return mix(key_ + (index + 1) * kGoldenGamma);
}

float SyntheticStream::normal(std::uint64_t index) const noexcept {
  const std::uint64_t word = bits(index);
  const auto sum =
      static_cast<std::int32_t>((word & 0xffffu) + ((word >> 16) & 0xffffu) + ((word >> 32) & 0xffffu) + (word >> 48));
  constexpr std::int32_t kMean = 2 * 65535;
  // 1 / sqrt(4 * (65536^2 - 1) / 12)
  constexpr float kInverseDeviation = 2.6428996e-05F;
  return static_cast<float>(sum - kMean) * kInverseDeviation;
}

SyntheticMatrix::SyntheticMatrix(std::uint64_t seed, std::string_view name, std::int64_t cols) noexcept
    : values_(seed, name),
      gains_(seed ^ kGainSeedMask, name),
      cols_(cols),
      deviation_(1.0F / std::sqrt(static_cast<float>(cols))) {}

void SyntheticMatrix::fill_row(std::int64_t row, std::span<float> values) const noexcept {
  const std::int64_t column_blocks = ceil_div(cols_, kBlock);
  for (std::int64_t block = 0; block < column_blocks; ++block) {
    const auto gain_index = static_cast<std::uint64_t>((row / kBlock) * column_blocks + block);
    const float factor = deviation_ * kGains[gains_.bits(gain_index) % kGains.size()];
    const std::int64_t end = std::min(cols_, (block + 1) * kBlock);
    for (std::int64_t col = block * kBlock; col < end; ++col) {
      values[static_cast<std::size_t>(col)] = values_.normal(static_cast<std::uint64_t>(row * cols_ + col)) * factor;
    }
  }
}

float SyntheticMatrix::bound() const noexcept {
  return kMaxSyntheticNormal * deviation_ * kGains.back();
}

}  // namespace dsv4rt
