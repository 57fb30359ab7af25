// Chooses the variant of the split-K kernel for a launch.
#pragma once

#include <cstdint>
#include <span>

#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/splitk/splitk_variant.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

inline constexpr std::int32_t kMostSplitKTokens = 64;

struct SplitKPlan {
  const SplitKVariant* variant = nullptr;
  int shared_bytes = 0;  // of a block
  int ring_bytes = 0;    // see LinearParams
};

// Calls over tile-packed weights of equally many segments. Precondition: 1 .. kMostSplitKTokens tokens.
// A variant of so many tokens, row tiles and segments a block where they are not 0.
Result<SplitKPlan> plan_splitk(std::span<const LinearCall* const> calls, std::int32_t tokens, int item_tokens = 0,
                               int row_tiles = 0, int groups = 0);

}  // namespace dsv4rt::cuda
