// Tensor parallelism: which heads and output groups one of several ranks computes.
#pragma once

#include <cstdint>

#include "dsv4rt/model.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Rank r of n has heads [rH/n, (r+1)H/n) and output groups [rg/n, (r+1)g/n): rows of wq_b and wo_a, columns of wo_b,
// sinks. Everything else is on every rank, so that every rank's cache holds the same bytes.
struct TensorShard {
  std::int32_t rank = 0;
  std::int32_t size = 1;

  // The rank's part of `total` equal things, of which there are a multiple of `size`.
  [[nodiscard]] std::int64_t count(std::int64_t total) const noexcept { return total / size; }
  [[nodiscard]] std::int64_t first(std::int64_t total) const noexcept { return total / size * rank; }
};

// The configuration as the rank's operations see it: its heads and groups. kInvalidArgument naming the numbers when
// there is no such rank, or when heads or groups cannot be dealt out evenly.
Result<ModelConfig> shard_config(const ModelConfig& config, const TensorShard& shard);

}  // namespace dsv4rt
