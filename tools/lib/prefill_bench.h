// Times the prefill of a prompt by all layers of an engine, one step from empty, as a serving stack runs it:
// hidden states stay in backend memory. Checked in the same run: the prompt in two halves gives the same bytes.
#pragma once

#include <cstdint>
#include <optional>

#include "dsv4rt/engine.h"
#include "tools/lib/work_watch.h"

namespace dsv4rt {

struct PrefillBenchResult {
  double prefill_ms = 0;         // median
  std::int32_t held_by = -1;     // SequenceState::held_by of the prompts that were timed
  double linear_fp8_flops = 0;   // linears whose weights take one byte a value or less
  double linear_bf16_flops = 0;  // the other linears
  double attention_flops = 0;    // index scores included
  double halves_distance = 0;    // relative L2 distance of outputs of the second half; 0: equal bytes
};

// An engine for this takes max_step_tokens and max_context_tokens of at least `tokens`.
// kMismatch when the halves differ; kInvalidArgument for numbers that are not positive.
// The watch is asked before every step and between its layers; when it ends the bench, kFailedPrecondition is returned,
// the watch is stopped() and the engine is not to be used any more. `hand_over_to`: what the timed steps are prepared
// with (StepOptions).
Result<PrefillBenchResult> bench_prefill(Engine& engine, std::int32_t tokens, std::int32_t repeats, std::uint64_t seed,
                                         WorkWatch* watch = nullptr,
                                         std::optional<std::int32_t> hand_over_to = std::nullopt);

struct PrefillShape {
  std::int32_t tokens = 0;
  std::int64_t context_tokens = 0;  // cached before
};

// Median time in milliseconds of a part of a prompt after a context that nobody computed: whatever valid rows the
// caches hold (EngineEditor::fill_caches). An engine for this takes max_step_tokens of at least the tokens and
// max_context_tokens of at least both together. The watch as above.
Result<double> time_prefill_after(Engine& engine, const PrefillShape& shape, std::int32_t repeats, std::uint64_t seed,
                                  WorkWatch* watch = nullptr);

}  // namespace dsv4rt
