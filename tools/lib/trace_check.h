// Compares a trace run with what the reference recorded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/lib/trace_run.h"

namespace dsv4rt {

// Why these numbers: two equally valid evaluation orders of the same layer differ by about 0.2 % in
// BF16 and 0.5 % where linears round their activations to FP8 (one flipped BF16 bit can move an FP8
// code). A code of a cached row may flip for the same reason, and with it one selected row whose
// score is nearly tied.
struct TraceTolerance {
  double output_relative_error = 0;        // L2, per layer
  double row_code_fraction = 0.005;        // values of a cached row kind that may be one code off
  double selection_token_fraction = 0.05;  // tokens whose selection may differ ...
  float selection_margin = 0.02F;          // ... provided the recorded margin is below this

  static TraceTolerance bf16_linears() { return {.output_relative_error = 4e-3}; }
  static TraceTolerance fp8_linears() { return {.output_relative_error = 1e-2}; }
  // linear_precision kFp8: FP8 products summed with about 14 bits were seen to move 0.9 % of the window codes and the
  // outputs by 1.8 %, and outputs of attention rounded to E4M3, by 2.7 % of their norm, before they are
  // projected. That moves most of what is rounded behind the projection to another code: outputs by 4.2 %.
  static TraceTolerance fp8_precision() { return {.output_relative_error = 6e-2, .row_code_fraction = 0.02}; }
};

// De-quantized rows against recorded ones.
struct RowComparison {
  std::int64_t values = 0;
  // Differ by no more than one step of the format's grid; for rotated values a step of the pair's length.
  std::int64_t off_by_one_code = 0;
  std::int64_t further_off = 0;
};

struct LayerCheck {
  LayerId layer;
  bool output_compared = false;
  double relative_error = 0;  // ||out - ref|| / ||ref|| over tokens with the recorded selection
  double cosine = 1;          // over the same tokens
  std::int64_t compared_tokens = 0;
  std::optional<RowComparison> compressed_kv;
  std::optional<RowComparison> index_k;
  std::optional<RowComparison> window_kv;
  bool selection_compared = false;
  std::int64_t selection_differs = 0;      // tokens that select other rows than recorded
  std::int64_t selection_unexplained = 0;  // those among them whose recorded margin forbids it
  std::vector<std::string> failures;       // empty: the layer matches
  std::vector<std::string> not_compared;   // what was recorded but cannot be compared, and why
};

// Tolerance for the engine's weights, FP8 linears or not, and for its matrix products.
TraceTolerance default_tolerance(Engine& engine);

// One entry per layer of the run. kBadInput when a layer has nothing recorded: a check that compares
// nothing would always pass.
Result<std::vector<LayerCheck>> check_trace(Engine& engine, const AttentionTrace& trace, const TraceRun& run,
                                            const TraceTolerance& tolerance);

}  // namespace dsv4rt
