// Per-channel softmax pooling of the rows of a block.
#pragma once

#include <array>
#include <cstring>

#include "backend/cpu/exp_lanes.h"

namespace dsv4rt::cpu {

// One position's kv and score; `bias` (the position embedding) is added to the score unless null,
// in which case the score already contains it.
struct PoolRow {
  const float* kv = nullptr;
  const float* score = nullptr;
  const float* bias = nullptr;
};

// Collects rows in position order, then reduces every channel on its own:
// sum(exp(s - max) * kv) / sum(exp(s - max)), all in FP32 and in the order of addition.
class BlockPool {
 public:
  static constexpr int kMaxRows = 256;

  // dim: channels, a multiple of 4.
  explicit BlockPool(int dim) : dim_(dim) {}

  void add(const PoolRow& row) { rows_[static_cast<std::size_t>(count_++)] = row; }

  void reduce(float* values) const {
    for (int channel = 0; channel < dim_; channel += kLanes) {
      const Float pooled = reduce_lanes(channel);
      std::memcpy(values + channel, &pooled, sizeof(Float));
    }
  }

 private:
  static constexpr int kLanes = 4;
  using Float = LanesOf<kLanes>::Float;

  static Float load(const float* from) {
    Float value;
    std::memcpy(&value, from, sizeof(Float));
    return value;
  }

  [[nodiscard]] Float score(const PoolRow& row, int channel) const {
    const Float value = load(row.score + channel);
    return row.bias == nullptr ? value : value + load(row.bias + channel);
  }

  [[nodiscard]] Float reduce_lanes(int channel) const {
    Float largest = score(rows_[0], channel);
    for (int i = 1; i < count_; ++i) {
      const Float value = score(rows_[static_cast<std::size_t>(i)], channel);
      largest = value > largest ? value : largest;
    }
    Float weight_sum{};
    Float weighted{};
    for (int i = 0; i < count_; ++i) {
      const PoolRow& row = rows_[static_cast<std::size_t>(i)];
      const Float weight = exp_lanes<kLanes>(score(row, channel) - largest);
      weight_sum += weight;
      weighted += weight * load(row.kv + channel);
    }
    return weighted / weight_sum;
  }

  int dim_;
  int count_ = 0;
  std::array<PoolRow, kMaxRows> rows_;
};

}  // namespace dsv4rt::cpu
