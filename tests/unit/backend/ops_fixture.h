// What the tests of the operations share: steps built from a list of sequences, deterministic data,
// operations at a chosen thread count and instruction-set level.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <span>
#include <vector>

#include "backend/cpu/cpu_features.h"
#include "backend/cpu/cpu_linear.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/parallel.h"
#include "backend/row_ops.h"
#include "layout/row_format.h"
#include "step/step_metadata.h"
#include "support/reference_math.h"

namespace dsv4rt::test {

// Tokens [start, start + count) of the sequence in `slot`.
struct Part {
  std::int32_t slot = 0;
  std::int32_t start = 0;
  std::int32_t count = 0;
};

// The metadata of a step over `parts`, followed by `padding` padding tokens; ratio class i has ratios[i].
class TestStep {
 public:
  explicit TestStep(const std::vector<Part>& parts, std::int32_t padding = 0, std::vector<std::int32_t> ratios = {})
      : masks_(ratios.size()), row_index_(ratios.size()) {
    first_token_.push_back(0);
    for (std::size_t s = 0; s < parts.size(); ++s) {
      slot_.push_back(parts[s].slot);
      start_.push_back(parts[s].start);
      for (std::int32_t i = 0; i < parts[s].count; ++i) {
        add_token(static_cast<std::int32_t>(s), parts[s].start + i, ratios);
      }
      first_token_.push_back(static_cast<std::int32_t>(position_.size()));
    }
    valid_tokens_ = static_cast<std::int32_t>(position_.size());
    for (const Part& part : parts) {
      longest_entry_ = std::max(longest_entry_, part.count);
      context_end_ = std::max(context_end_, part.start + part.count);
    }
    for (std::int32_t i = 0; i < padding; ++i) add_token(-1, 0, ratios);
  }

  [[nodiscard]] StepView view() const {
    StepView view;
    view.counts = {.tokens = tokens(),
                   .valid_tokens = valid_tokens_,
                   .sequences = static_cast<std::int32_t>(slot_.size()),
                   .table_deltas = static_cast<std::int32_t>(deltas.size()),
                   .block_copies = static_cast<std::int32_t>(copies.size()),
                   .longest_entry = longest_entry_,
                   .context_end = context_end_,
                   .reserved = 0};
    view.token_position = position_.data();
    view.token_sequence = sequence_.data();
    view.sequence_slot = slot_.data();
    view.sequence_start = start_.data();
    view.sequence_first_token = first_token_.data();
    for (std::size_t i = 0; i < masks_.size(); ++i) {
      view.valid_mask[i] = masks_[i].data();
      view.row_index[i] = row_index_[i].data();
    }
    view.table_deltas = deltas.data();
    view.block_copies = copies.data();
    return view;
  }
  [[nodiscard]] std::int32_t tokens() const { return static_cast<std::int32_t>(position_.size()); }
  // Clears the mask of ratio class `i`: nothing completes, whatever the positions say.
  void clear_mask(std::size_t i) { masks_[i].assign(masks_[i].size(), 0); }

  std::vector<BlockTableDelta> deltas;
  std::vector<BlockCopy> copies;

 private:
  void add_token(std::int32_t sequence, std::int32_t position, const std::vector<std::int32_t>& ratios) {
    position_.push_back(position);
    sequence_.push_back(sequence);
    for (std::size_t i = 0; i < ratios.size(); ++i) {
      const bool completes = sequence >= 0 && (position + 1) % ratios[i] == 0;
      masks_[i].push_back(completes ? 1 : 0);
      row_index_[i].push_back(completes ? position / ratios[i] : -1);
    }
  }

  std::vector<std::int32_t> position_, sequence_, slot_, start_, first_token_;
  std::vector<std::vector<std::uint8_t>> masks_;
  std::vector<std::vector<std::int32_t>> row_index_;
  std::int32_t valid_tokens_ = 0;
  std::int32_t longest_entry_ = 0;
  std::int32_t context_end_ = 0;
};

// SplitMix64: the same numbers with every standard library.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t bits() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Standard normal, Box-Muller.
  float normal() {
    const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));
    return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * uniform()));
  }

 private:
  std::uint64_t state_;
};

inline std::vector<float> random_floats(std::uint64_t seed, std::size_t count, float scale = 1.0f) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.normal() * scale;
  return values;
}

inline std::vector<bf16> random_bf16(std::uint64_t seed, std::size_t count, float scale = 1.0f) {
  Random random(seed);
  std::vector<bf16> values(count);
  for (bf16& value : values) value = to_bf16(random.normal() * scale);
  return values;
}

// Memory in which every byte is something: writes where none belong show.
inline std::vector<std::byte> poisoned(std::size_t bytes, std::uint64_t seed = 77) {
  Random random(seed);
  std::vector<std::byte> memory(bytes);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random.bits() & 0xff);
  return memory;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class TestOps {
 public:
  explicit TestOps(int threads = 2, cpu::IsaLevel isa = cpu::detect_isa_level())
      : team_(threads), scratch_(region(memory_)), ops_(team_, scratch_, isa) {}
  RowOps* operator->() { return &ops_; }
  RowOps& operator*() { return ops_; }

 private:
  // More than any test takes.
  static Scratch region(cpu::AlignedBytes& memory) {
    constexpr std::size_t kBytes = std::size_t{32} << 20;
    return memory.reserve(kBytes) ? Scratch(memory.data(), kBytes) : Scratch();
  }

  cpu::ThreadTeam team_;
  cpu::AlignedBytes memory_;
  Scratch scratch_;
  cpu::CpuOps ops_;
};

inline std::vector<cpu::IsaLevel> available_levels() {
  std::vector<cpu::IsaLevel> levels;
  for (const cpu::IsaLevel level : {cpu::IsaLevel::kPortable, cpu::IsaLevel::kAvx2, cpu::IsaLevel::kAvx512}) {
    if (level <= cpu::detect_isa_level()) levels.push_back(level);
  }
  return levels;
}

inline std::vector<float> test_frequencies(double theta = 10000.0) {
  std::vector<float> frequencies(kRopeDim / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / kRopeDim));
  }
  return frequencies;
}

inline double bf16_of(double value) {
  return static_cast<double>(round_to_bf16(static_cast<float>(value)));
}

// Rotation in double of the last kRopeDim values, rounded to BF16. The angle is the FP32 product.
inline void reference_rope(std::vector<double>& values, const std::vector<float>& frequencies, std::int32_t position,
                           bool inverse = false) {
  const std::span<double> tail = std::span(values).last(kRopeDim);
  test::reference_rotate(tail, [&](std::size_t i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    return static_cast<double>(inverse ? -angle : angle);
  });
  for (double& value : tail) value = bf16_of(value);
}

// |a - b| relative to b in units of one BF16 step, at most 1 apart from FP32 noise at a rounding boundary.
inline bool within_one_bf16_step(double a, double b, double floor = 1e-3) {
  return std::abs(a - b) <= std::max(std::abs(b), floor) * 0x1.02p-7;
}

}  // namespace dsv4rt::test
