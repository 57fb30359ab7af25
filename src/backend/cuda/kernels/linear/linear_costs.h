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
    LinearCost{splitk_of(64, 4, 1), 0, 0, 3.971, 0.09289, 0.09943, 0.00527},
    LinearCost{splitk_of(80, 4, 1), 0, 1.286, 6.002, 0.04941, 0.07753, 0.005923},
    LinearCost{splitk_of(80, 2, 1), 1.448, 3.111, 1.075, 0.07257, 0.08249, 0.01109},
    LinearCost{splitk_of(80, 1, 1), 3.824, 0, 5.596, 0.02396, 0.04595, 0.01094},
    LinearCost{splitk_of(96, 4, 1), 1.058, 0, 8.828, 0, 0, 0.008718},
    LinearCost{splitk_of(96, 1, 1), 2.508, 0, 3.61, 0.1222, 0.1482, 0.00686},
    LinearCost{splitk_of(96, 1, 2), 4.604, 0, 2.958, 0.09191, 0.07395, 0.01236},
    LinearCost{splitk_of(112, 4, 1), 0.1098, 1.352, 7.617, 0.1113, 0.1207, 0.00385},
    LinearCost{splitk_of(128, 1, 2), 3.31, 0.003788, 6.972, 0.05563, 0.05133, 0.01121},
    LinearCost{tile_of(1, 2, 2), 0.3827, 2.25, 6.713, 0.1695, 0.1415, 0},
    LinearCost{tile_of(2, 1), 1.896, 3.692, 1.779, 0.4093, 0.324, 0},
    LinearCost{tile_of(2, 2), 1.999, 0, 1.001, 0.5347, 0.4862, 0},
    LinearCost{tile_of(2, 1, 1, 256), 0.8832, 0, 1.919, 0.5997, 0.5997, 0},
    LinearCost{prefill_of(128), 3.078, 0.002598, 4.087, 0.3441, 0.3018, 0},
    LinearCost{prefill_of(192), 2.171, 3.778, 3.023, 0.4501, 0.4603, 0},
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
