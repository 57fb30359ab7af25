#include "backend/cuda/kernels/linear/linear_costs.h"

#include <algorithm>

#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"
#include "base/arithmetic.h"

namespace dsv4rt::cuda {
namespace {

// Stages of the busiest of a resident kernel's clusters. Items that are all alike come in whole rounds; otherwise the
// order of items evens out what it can.
double busiest_stages(const LinearPlan& plan, std::int32_t tokens, std::span<const LinearShape> shapes, int& items) {
  double all = 0;
  double most = 0;
  items = 0;
  for (const LinearShape& shape : shapes) {
    const auto stages = static_cast<double>(shape.inputs / stage_inputs(*shape.tiles));
    const int own = static_cast<int>(ceil_div<std::int64_t>(shape.outputs, kRowTile * plan.item_row_tiles)) *
                    ceil_div(tokens, plan.item_tokens);
    items += own;
    all += own * stages;
    most = std::max(most, stages);
  }
  if (all == items * most) return ceil_div(items, plan.clusters) * most;
  return std::max(most, all / plan.clusters);
}

// Clusters of the split-K kernel that run at once. Those of more than two blocks do not fill the groups that
// multiprocessors come in.
int splitk_places(const SplitKVariant& variant, int cluster_blocks, int multiprocessors) {
  const int blocks = multiprocessors * variant.blocks_per_sm;
  return std::max(1, (cluster_blocks <= 2 ? blocks : blocks * 10 / 11) / cluster_blocks);
}

}  // namespace

double cost_of(const LinearCost& cost, const LinearPlan& plan, int multiprocessors, std::int32_t tokens,
               std::span<const LinearShape> shapes) {
  bool rounds_inputs = false;
  bool fp8 = false;
  double bytes = 0;
  const int token_tiles = ceil_div(tokens, plan.item_tokens);
  for (const LinearShape& shape : shapes) {
    rounds_inputs = rounds_inputs || (shape.rounds && !shape.encoded);
    fp8 = fp8 || shape.tiles != TileKind::kBf16;
    const auto row_groups = static_cast<double>(ceil_div<std::int64_t>(shape.outputs, kRowTile * plan.item_row_tiles));
    const auto stages = static_cast<double>(shape.inputs / stage_inputs(*shape.tiles));
    bytes += row_groups * stages *
             (tokens * kStageBytesOfInput + token_tiles * plan.item_row_tiles * stage_tile_bytes(*shape.tiles));
  }
  double rounds = 0;
  double stages = 0;
  if (plan.variant.family == LinearFamily::kSplitK) {
    const SplitKVariant& variant = kSplitKVariants.at(static_cast<std::size_t>(plan.variant.number));
    const int blocks = plan.clusters * plan.cluster_blocks;
    const int neighbours = std::min(variant.blocks_per_sm, ceil_div(blocks, multiprocessors));
    const auto segment_stages = static_cast<double>(shapes[0].inputs) / stage_inputs(*shapes[0].tiles) /
                                tile_segments(*shapes[0].tiles, shapes[0].inputs);
    rounds = ceil_div(plan.clusters, splitk_places(variant, plan.cluster_blocks, multiprocessors));
    stages = rounds * segment_stages * neighbours * variant.groups * variant.row_tiles;
  } else {
    int items = 0;
    // Blocks of a cluster share the segments, but for the prefill kernel's.
    const int share = plan.variant.family == LinearFamily::kPrefill ? 1 : plan.cluster_blocks;
    stages = busiest_stages(plan, tokens, shapes, items) / share;
    rounds = ceil_div(items, plan.clusters);
  }
  return cost.start + (rounds_inputs ? cost.rounding : 0) + cost.round * rounds +
         (fp8 ? cost.fp8_stage : cost.bf16_stage) * stages + cost.traffic * bytes / 1024 / multiprocessors;
}

}  // namespace dsv4rt::cuda
