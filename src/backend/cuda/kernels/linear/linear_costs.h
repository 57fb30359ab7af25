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

// splitk 96r2 is the one variant besides 64x4 that runs kFp8Products beside other kinds, and the only one where they
// have fewer than four segments.
inline constexpr std::array kLinearCosts = {
    LinearCost{splitk_of(64, 4, 1), 0, 0, 9.429, 0.0146, 0.0228, 0.004224},
    LinearCost{splitk_of(80, 4, 1), 0, 0.004743, 9.85, 0.0006718, 0.0004914, 0.005946},
    LinearCost{splitk_of(80, 2, 1), 1.786, 2.651, 1.28, 0.09925, 0.1198, 0.008052},
    LinearCost{splitk_of(80, 1, 1), 3.603, 1.647, 2.751, 0.06005, 0.1044, 0.00987},
    LinearCost{splitk_of(96, 4, 1), 0, 1.969, 7.115, 0.04977, 0.08259, 0.00624},
    LinearCost{splitk_of(96, 1, 1), 4.087, 0.08507, 1.869, 0.1123, 0.1507, 0.007873},
    LinearCost{splitk_of(96, 1, 2), 4.626, 0.03213, 3.426, 0.08106, 0.06478, 0.01271},
    LinearCost{splitk_of(112, 4, 1), 0, 3.651, 4.048, 0.1346, 0.1629, 0.005118},
    LinearCost{splitk_of(128, 1, 2), 4.74, 0.07927, 4.805, 0.06446, 0.04655, 0.01392},
    LinearCost{tile_of(1, 2, 2), 0.7854, 2.289, 3.801, 0.2311, 0.2328, 0},
    LinearCost{tile_of(2, 1), 2.798, 2.634, 1.306, 0.4077, 0.3235, 0},
    LinearCost{tile_of(2, 2), 2.315, 1.39e-05, 1.447, 0.4614, 0.417, 0},
    LinearCost{tile_of(1, 2, 2, 160), 0, 3.362, 5.196, 0.2364, 0.2659, 0},
    LinearCost{tile_of(2, 1, 1, 160), 2.462, 0.4128, 1.769, 0.46, 0.3906, 0},
    LinearCost{tile_of(2, 2, 1, 160), 2.342, 0.0007673, 1.731, 0.5337, 0.4805, 0},
    LinearCost{tile_of(1, 2, 2, 192), 0.06661, 0, 5.49, 0.3175, 0, 0},
    LinearCost{tile_of(2, 1, 1, 192), 0, 0.827, 1.139, 0.5718, 0.4863, 0},
    LinearCost{tile_of(2, 2, 1, 192), 2.031, 2.095, 2.56, 0.6106, 0.6348, 0},
    LinearCost{tile_of(2, 1, 1, 256), 0.3077, 0, 1.915, 0.5984, 0.5984, 0},
    LinearCost{prefill_of(128), 1.646, 2.482, 2.454, 0.3783, 0.3418, 0},
    LinearCost{prefill_of(192), 2.142, 2.375, 2.895, 0.475, 0.4483, 0},
};

// Of launches of kFp8Products alone, which all round: `start` holds that too.
inline constexpr std::array kFp8Costs = {
    LinearCost{splitk_of(64, 4, 1), 1.326, 0, 6.61, 0, 0, 0.01124},
    LinearCost{splitk_of(96, 1, 2), 5.654, 0, 3.145, 0.1654, 0, 0.008404},
    LinearCost{fp8_of(64), 3.71, 0, 0.709, 0.3544, 0, 0},
    LinearCost{fp8_of(128), 4.347, 0, 0.9786, 0.5079, 0, 0},
    LinearCost{fp8_of(192), 3.097, 0, 1.217, 0.6954, 0, 0},
};

}  // namespace dsv4rt::cuda
