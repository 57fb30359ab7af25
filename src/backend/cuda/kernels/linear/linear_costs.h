// Estimated times of the kernels that compete from 65 tokens on: every variant's are the sum of
//
//   start + rounding (if inputs are rounded) + round * rounds + stage * stages + traffic * KB
//
// rounds: items one after the other on the busiest multiprocessor; stages: there, of all blocks that share it; KB: what
// all blocks copy into shared memory, of one multiprocessor. Constants in microseconds, fitted by
// scripts/gpu/fit_linear_plan.py to what bench_linear_gpu measures; README.md has inputs and residuals.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "backend/cuda/kernels/linear/linear_dispatch.h"
#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"

namespace dsv4rt::cuda {

struct LinearCost {
  LinearVariant variant;
  double start;
  double rounding;
  double round;
  double fp8_stage;   // a stage where some weights are FP8; of 128 inputs for kFp8Products, as of no others
  double bf16_stage;  // a stage where all weights are BF16
  double traffic;     // a KB copied into shared memory
};

// Microseconds of a launch that goes by the plan. The script computes the same.
double cost_of(const LinearCost& cost, const LinearPlan& plan, int multiprocessors, std::int32_t tokens,
               std::span<const LinearShape> shapes);

// Numbers of variants by what they are; one that is not there does not compile.
template <class Variants, class Wanted>
consteval int number_of(const Variants& variants, const Wanted& wanted) {
  for (std::size_t i = 0; i < variants.size(); ++i) {
    if (wanted(variants[i])) return static_cast<int>(i);
  }
  throw "no such variant";
}
consteval LinearVariant splitk_of(int tokens, int groups, int row_tiles) {
  return {LinearFamily::kSplitK, number_of(kSplitKVariants, [&](const SplitKVariant& v) {
            return v.tokens == tokens && v.groups == groups && v.row_tiles == row_tiles;
          })};
}
consteval LinearVariant tile_of(int row_tiles, int cluster_blocks, int parts = 1, int tokens = 128) {
  return {LinearFamily::kTile, number_of(kTileVariants, [&](const TileVariant& v) {
            return v.row_tiles == row_tiles && v.cluster_blocks == cluster_blocks && v.parts == parts &&
                   v.tokens == tokens;
          })};
}
consteval LinearVariant prefill_of(int tokens) {
  return {LinearFamily::kPrefill,
          number_of(kPrefillVariants, [&](const PrefillVariant& v) { return v.tokens == tokens; })};
}

consteval LinearVariant fp8_of(int tokens) {
  return {LinearFamily::kFp8, number_of(kFp8Variants, [&](const Fp8Variant& v) { return v.tokens == tokens; })};
}

inline constexpr std::array kLinearCosts = {
    LinearCost{splitk_of(64, 4, 1), 0, 3.019, 4.344, 0.004577, 0.0142, 0.01081},
    LinearCost{splitk_of(80, 4, 1), 0, 3.72, 3.628, 0.004476, 0.01427, 0.0103},
    LinearCost{splitk_of(80, 2, 1), 1, 2.936, 0.5023, 0.1032, 0.1176, 0.008795},
    LinearCost{splitk_of(96, 4, 1), 0, 5.215, 2.665, 0.0235, 0.07835, 0.009825},
    LinearCost{splitk_of(96, 1, 2), 2.274, 1.272, 3.821, 0.06087, 0.0595, 0.01153},
    LinearCost{splitk_of(96, 1, 5), 3.84, 2.514, 4.192, 0.1038, 0.1153, 0.009969},
    LinearCost{splitk_of(112, 4, 1), 0, 5.363, 3.284, 0.0452, 0.102, 0.01123},
    LinearCost{splitk_of(128, 4, 1), 0, 4.477, 3.318, 0.07121, 0.1036, 0.009532},
    LinearCost{splitk_of(128, 1, 2), 5.76, 0.351, 5.619, 0.05733, 0.06594, 0.005},
    LinearCost{tile_of(1, 2, 2), 2.377, 0, 3.472, 0.2852, 0.2814, 0},
    LinearCost{tile_of(2, 1), 0, 2.113, 1.807, 0.4213, 0.338, 0},
    LinearCost{tile_of(2, 2), 0, 1.608, 1.793, 0.5373, 0.5389, 0},
    LinearCost{tile_of(2, 1, 1, 256), 3.3, 0, 2, 0.629, 0.629, 0},
    LinearCost{tile_of(2, 4), 2, 2.727, 3.234, 0.5168, 0.5231, 0},
    LinearCost{prefill_of(128), 0.3807, 3.095, 1.732, 0.4002, 0.3368, 0},
    LinearCost{prefill_of(192), 0.5553, 3.588, 2.802, 0.4364, 0.4814, 0},
};

// Of launches of kFp8Products alone, which all round: `start` holds that too.
inline constexpr std::array kFp8Costs = {
    LinearCost{splitk_of(64, 4, 1), 0.5689, 0, 3.128, 0, 0, 0.01289},
    LinearCost{splitk_of(96, 1, 2), 3.017, 0, 2.642, 0.1921, 0, 0.004887},
    LinearCost{fp8_of(64), 4.074, 0, 0.3115, 0.3345, 0, 0},
    LinearCost{fp8_of(128), 5.401, 0, 0.7297, 0.4525, 0, 0},
    LinearCost{fp8_of(192), 2.189, 0, 1.137, 0.6067, 0, 0},
};

}  // namespace dsv4rt::cuda
