#include "tools/lib/prefill_bench.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/bfloat16.h"
#include "base/try.h"
#include "checkpoint/synthetic_values.h"
#include "tools/lib/bench_check.h"
#include "tools/lib/engine_editor.h"
#include "tools/lib/median.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;

class PrefillBench {
 public:
  PrefillBench(Engine& engine, std::int32_t tokens, std::uint64_t seed, WorkWatch* watch)
      : engine_(engine),
        watch_(watch),
        inspector_(engine),
        tokens_(tokens),
        hidden_(engine.config().hidden_size),
        x_(static_cast<std::size_t>(tokens * hidden_)) {
    const SyntheticStream stream(seed, "prefill bench input");
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = to_bf16(stream.normal(i));
  }

  Result<double> median_ms(std::int32_t repeats, std::int64_t context_tokens,
                           std::optional<std::int32_t> hand_over_to = std::nullopt) {
    std::vector<double> times;
    for (std::int32_t repeat = 0; repeat <= repeats; ++repeat) {  // the first one warms up
      DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence());
      DSV4RT_RETURN_IF_ERROR(EngineEditor(engine_).skip_tokens({&sequence, 1}, context_tokens));
      DSV4RT_RETURN_IF_ERROR(upload_input(0, tokens_));
      DSV4RT_RETURN_IF_ERROR(engine_.synchronize());
      const Clock::time_point begin = Clock::now();
      DSV4RT_RETURN_IF_ERROR(step(sequence, tokens_, hand_over_to));
      DSV4RT_RETURN_IF_ERROR(engine_.synchronize());
      if (repeat > 0) times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
      DSV4RT_ASSIGN_OR_RETURN(const SequenceState state, engine_.sequence_state(sequence));
      held_by_ = state.held_by;
      DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
    }
    return median(std::move(times));
  }

  [[nodiscard]] std::int32_t held_by() const { return held_by_; }

  // The last layer's output for the second half of the prompt, computed with the first and after it: their distance.
  Result<double> check_halves() {
    const std::int32_t first = tokens_ / 2;
    const std::int32_t second = tokens_ - first;
    if (first == 0) return 0.0;
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId whole, engine_.create_sequence());
    DSV4RT_RETURN_IF_ERROR(upload_input(0, tokens_));
    DSV4RT_RETURN_IF_ERROR(step(whole, tokens_));
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<bf16> expected, output(first, second));
    DSV4RT_RETURN_IF_ERROR(engine_.release(whole));
    DSV4RT_ASSIGN_OR_RETURN(const SequenceId halves, engine_.create_sequence());
    DSV4RT_RETURN_IF_ERROR(step(halves, first));
    DSV4RT_RETURN_IF_ERROR(upload_input(first, second));
    DSV4RT_RETURN_IF_ERROR(step(halves, second));
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<bf16> actual, output(0, second));
    DSV4RT_RETURN_IF_ERROR(engine_.release(halves));
    const double distance = relative_distance(expected, actual);
    if (agree(distance, inspector_.deterministic(), kTokenTolerance)) return distance;
    return Status{StatusCode::kMismatch, "the last layer's output for a prompt of " + std::to_string(tokens_) +
                                             " tokens changes by " + std::to_string(distance) +
                                             " of its norm when it is prefilled in two halves"};
  }

 private:
  Status step(SequenceId sequence, std::int32_t tokens, std::optional<std::int32_t> hand_over_to = std::nullopt) {
    DSV4RT_RETURN_IF_ERROR(check_watch(watch_));
    const StepEntry entry{sequence, tokens};
    DSV4RT_ASSIGN_OR_RETURN(const Step step, engine_.prepare({&entry, 1}, {.hand_over_to = hand_over_to}));
    const auto keep_inputs = [this](const LayerOutput&) { return check_watch(watch_); };
    DSV4RT_RETURN_IF_ERROR(engine_.step(step, engine_.input(), keep_inputs));
    return engine_.commit(step);
  }
  Status upload_input(std::int64_t first, std::int64_t rows) {
    return inspector_.backend().upload(engine_.input(), x_.data() + first * hidden_,
                                       static_cast<std::size_t>(rows * hidden_) * sizeof(bf16));
  }
  Result<std::vector<bf16>> output(std::int64_t first, std::int64_t rows) {
    std::vector<bf16> out(static_cast<std::size_t>(rows * hidden_));
    DSV4RT_RETURN_IF_ERROR(inspector_.backend().download(out.data(), inspector_.last_output() + first * hidden_,
                                                         out.size() * sizeof(bf16)));
    return out;
  }

  Engine& engine_;
  WorkWatch* watch_;  // may be null
  EngineInspector inspector_;
  std::int32_t tokens_;
  std::int64_t hidden_;
  std::vector<bf16> x_;
  std::int32_t held_by_ = -1;
};

// Multiply-adds count as two. Visible rows are those at the middle of the prompt, which is their mean.
void count_flops(Engine& engine, std::int64_t tokens, PrefillBenchResult& result) {
  const EngineInspector inspector(engine);
  const ModelConfig& config = engine.config();
  for (const LayerId layer : engine.layers()) {
    const LinearTotals totals = inspector.layer_linears(layer);
    result.linear_fp8_flops += 2.0 * static_cast<double>(totals.byte_values * tokens);
    result.linear_bf16_flops += 2.0 * static_cast<double>(totals.wider_values * tokens);
    const LayerSpec& spec = inspector.layer_spec(layer);
    std::int64_t rows = std::min(config.sliding_window, tokens / 2);
    if (spec.ratio > 0) {
      const std::int64_t visible = tokens / 2 / spec.ratio;
      rows += spec.indexer ? std::min(config.index_topk, visible) : visible;
      if (spec.indexer) {
        result.attention_flops += 2.0 * static_cast<double>(tokens * visible * config.index_n_heads * kIndexHeadDim);
      }
    }
    result.attention_flops += 4.0 * static_cast<double>(tokens * rows * config.num_attention_heads * kHeadDim);
  }
}

}  // namespace

Result<PrefillBenchResult> bench_prefill(Engine& engine, std::int32_t tokens, std::int32_t repeats, std::uint64_t seed,
                                         WorkWatch* watch, std::optional<std::int32_t> hand_over_to) {
  if (tokens < 1 || repeats < 1) {
    return Status{StatusCode::kInvalidArgument, "prefill bench: " + std::to_string(tokens) + " tokens, " +
                                                    std::to_string(repeats) + " repeats; accepted: 1 or more of both"};
  }
  PrefillBench bench(engine, tokens, seed, watch);
  PrefillBenchResult result;
  DSV4RT_ASSIGN_OR_RETURN(result.halves_distance, bench.check_halves());
  DSV4RT_ASSIGN_OR_RETURN(result.prefill_ms, bench.median_ms(repeats, 0, hand_over_to));
  result.held_by = bench.held_by();
  count_flops(engine, tokens, result);
  return result;
}

Result<double> time_prefill_after(Engine& engine, const PrefillShape& shape, std::int32_t repeats, std::uint64_t seed,
                                  WorkWatch* watch) {
  if (shape.tokens < 1 || shape.context_tokens < 0 || repeats < 1) {
    return Status{StatusCode::kInvalidArgument,
                  "prefill bench: " + std::to_string(shape.tokens) + " tokens after " +
                      std::to_string(shape.context_tokens) + ", " + std::to_string(repeats) +
                      " repeats; accepted: 1 or more tokens and repeats, 0 or more before"};
  }
  return PrefillBench(engine, shape.tokens, seed, watch).median_ms(repeats, shape.context_tokens);
}

}  // namespace dsv4rt
