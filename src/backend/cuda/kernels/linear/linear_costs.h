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
  double fp8_stage;   // a stage where some weights are FP8; of kFp8Products it holds 128 inputs, of others 64
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

consteval LinearVariant fp8_of(int tokens, int row_tiles = 2, int cluster_blocks = 1) {
  return {LinearFamily::kFp8, number_of(kFp8Variants, [&](const Fp8Variant& v) {
            return v.tokens == tokens && v.row_tiles == row_tiles && v.cluster_blocks == cluster_blocks;
          })};
}

// Of launches without kFp8Products.
inline constexpr std::array kLinearCosts = {
    LinearCost{splitk_of(64, 4, 1), 0, 0.0003409, 4.716, 0.08363, 0.09834, 0.004159},
    LinearCost{splitk_of(80, 4, 1), 0, 5.994e-06, 9.543, 0, 1.988e-05, 0.006599},
    LinearCost{splitk_of(80, 2, 1), 2.338, 1.764, 1.509, 0.08491, 0.08828, 0.00917},
    LinearCost{splitk_of(80, 1, 1), 2.623, 1.696, 5.058, 2.859e-06, 0.01986, 0.01287},
    LinearCost{splitk_of(96, 4, 1), 0, 1.685, 7.393, 0.05305, 0.08032, 0.005644},
    LinearCost{splitk_of(96, 1, 1), 3.114, 0, 2.878, 0.09244, 0.1039, 0.009279},
    LinearCost{splitk_of(96, 1, 2), 4.985, 0, 2.599, 0.07679, 0.04854, 0.014},
    LinearCost{splitk_of(112, 4, 1), 0, 1.288, 3.741, 0.183, 0.1795, 0.002351},
    LinearCost{splitk_of(128, 1, 2), 5.242, 0.02775, 2.175, 0.1592, 0.1407, 0.005685},
    LinearCost{tile_of(1, 2, 2), 2.432, 0, 4.405, 0.221, 0.2261, 0},
    LinearCost{tile_of(2, 1), 4.364, 1.259, 1.943, 0.3909, 0.3111, 0},
    LinearCost{tile_of(2, 2), 3.516, 2.211e-05, 1.668, 0.4356, 0.4029, 0},
    LinearCost{tile_of(1, 2, 2, 160), 3.76, 0, 4.81, 0.2462, 0.2448, 0},
    LinearCost{tile_of(2, 1, 1, 160), 4.319, 0.4845, 1.375, 0.4489, 0.3961, 0},
    LinearCost{tile_of(2, 2, 1, 160), 2.542, 0, 1.734, 0.5299, 0.5158, 0},
    LinearCost{tile_of(1, 2, 2, 192), 0, 0.2361, 4.936, 0.3303, 0, 0},
    LinearCost{tile_of(2, 1, 1, 192), 3.252, 0, 0, 0.5855, 0.5326, 0},
    LinearCost{tile_of(2, 2, 1, 192), 2.369, 2.03, 2.337, 0.6137, 0.6764, 0},
    LinearCost{tile_of(2, 1, 1, 256), 0, 0, 1.936, 0.6051, 0.6051, 0},
    LinearCost{prefill_of(128), 2.614, 1.9, 2.981, 0.358, 0.3257, 0},
    LinearCost{prefill_of(192), 5.432, 1.167, 2.986, 0.4413, 0.4137, 0},
    // Of BF16 weights alone.
    LinearCost{fp8_of(128, 1), 0, 0, 1.448, 0, 0.2144, 0},
    LinearCost{fp8_of(128, 1, 2), 1.14, 0, 1.904, 0, 0.2354, 0},
    LinearCost{fp8_of(128), 3.644, 0, 2.005, 0, 0.3093, 0},
    LinearCost{fp8_of(128, 2, 2), 8.957, 0, 3.638, 0, 0, 0.01127},
    LinearCost{fp8_of(192, 1), 1.006, 0, 0.9712, 0, 0.22, 0.003131},
    LinearCost{fp8_of(192, 1, 2), 0.9149, 0, 1.021, 0, 0.3864, 0},
};

// Of launches of kFp8Products alone. splitk 96r2 is the one variant besides 64x4 that runs them, and the only one where
// they have fewer than four segments.
inline constexpr std::array kFp8Costs = {
    LinearCost{splitk_of(64, 4, 1), 0, 2.056, 3.803, 0.08135, 0, 0.007135},
    LinearCost{splitk_of(96, 1, 2), 2.704, 2.189, 3.285, 0.1377, 0, 0.008863},
    LinearCost{fp8_of(128, 1), 1.384, 1.428, 0.6179, 0.2566, 0, 0.003461},
    LinearCost{fp8_of(128, 1, 2), 3.86, 1.191, 0.8524, 0.1666, 0, 0.008315},
    LinearCost{fp8_of(128), 1.96, 2.229, 0.6686, 0.349, 0, 0.005182},
    LinearCost{fp8_of(128, 2, 2), 3.484, 2.212, 1.165, 0.3241, 0, 0.00742},
    LinearCost{fp8_of(192, 1), 1.878, 0, 0.6066, 0.3382, 0, 0.00305},
    LinearCost{fp8_of(192, 1, 2), 3.121, 1.384, 0.9952, 0.311, 0, 0.005632},
    LinearCost{fp8_of(192), 3.08, 2.042e-05, 0.7285, 0.5549, 0, 0.00415},
};

// Of launches of kFp8Products beside BF16 weights.
inline constexpr std::array kMixedCosts = {
    LinearCost{splitk_of(64, 4, 1), 1.009, 0, 7.526, 0, 0, 0.007833},
    LinearCost{splitk_of(96, 1, 2), 0.8117, 0, 7.44, 0, 0, 0.01702},
    LinearCost{fp8_of(128, 1), 0, 0, 6.445, 0.1078, 0, 0.005907},
    LinearCost{fp8_of(128, 1, 2), 0, 0, 5.365, 0.1441, 0, 0.005715},
    LinearCost{fp8_of(128), 0, 0, 11.38, 0.2091, 0, 0.003792},
    LinearCost{fp8_of(128, 2, 2), 0, 0, 6.021, 0.2903, 0, 0.006531},
    LinearCost{fp8_of(192, 1), 0, 0, 4.731, 0.1795, 0, 0.005682},
    LinearCost{fp8_of(192, 1, 2), 0, 0, 4.843, 0.2573, 0, 0.006349},
};

}  // namespace dsv4rt::cuda
