// Reproducible random weights: a value depends on seed, tensor name and element index only.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace dsv4rt {

// A counter-based generator (splitmix64's finalizer over key + counter): any element can be computed
// without the ones before it, in integer arithmetic that is the same everywhere.
class SyntheticStream {
 public:
  SyntheticStream(std::uint64_t seed, std::string_view name) noexcept;

  [[nodiscard]] std::uint64_t bits(std::uint64_t index) const noexcept;
  // Sum of four uniforms scaled to mean 0 and variance 1; magnitude at most 2 * sqrt(3).
  [[nodiscard]] float normal(std::uint64_t index) const noexcept;

 private:
  std::uint64_t key_;
};

inline constexpr float kMaxSyntheticNormal = 3.4642F;  // above 2 * sqrt(3)

// A matrix [rows, cols] of normals with standard deviation cols^-0.5, times a gain of 0.5, 1 or 1.5 for
// each 128 x 128 block: scales differ between blocks, so a reader that mixes them up is seen. The
// values are the same whatever encoding stores them.
class SyntheticMatrix {
 public:
  SyntheticMatrix(std::uint64_t seed, std::string_view name, std::int64_t cols) noexcept;

  // Row `row`, cols values.
  void fill_row(std::int64_t row, std::span<float> values) const noexcept;
  // No value exceeds this magnitude.
  [[nodiscard]] float bound() const noexcept;

 private:
  SyntheticStream values_;
  SyntheticStream gains_;
  std::int64_t cols_;
  float deviation_;
};

}  // namespace dsv4rt
