#include "tools/lib/step_bench.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "base/bfloat16.h"
#include "base/try.h"
#include "checkpoint/synthetic_values.h"
#include "tools/lib/bench_check.h"
#include "tools/lib/engine_editor.h"
#include "tools/lib/median.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int32_t kWarmUpSteps = 5;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class StepBench {
 public:
  StepBench(Engine& engine, const StepShape& shape, const StepBenchOptions& options, WorkWatch* watch)
      : engine_(engine), editor_(engine), shape_(shape), options_(options), watch_(watch) {}

  Result<StepBenchResult> run() {
    DSV4RT_RETURN_IF_ERROR(prepare_context());
    DSV4RT_RETURN_IF_ERROR(check_captured_equals_eager());
    StepBenchResult result;
    DSV4RT_RETURN_IF_ERROR(time_steps(false, result));
    if (editor_.backend().can_capture()) DSV4RT_RETURN_IF_ERROR(time_steps(true, result));
    DSV4RT_RETURN_IF_ERROR(time_waited_steps(result));
    count_bytes(result);
    for (const SequenceId sequence : sequences_) DSV4RT_RETURN_IF_ERROR(engine_.release(sequence));
    return result;
  }

 private:
  Status prepare_context() {
    if (options_.fill) DSV4RT_RETURN_IF_ERROR(editor_.fill_caches(options_.seed));
    for (std::int32_t s = 0; s < shape_.batch; ++s) {
      DSV4RT_ASSIGN_OR_RETURN(const SequenceId sequence, engine_.create_sequence());
      entries_.push_back({sequence, 1});
      sequences_.push_back(sequence);
    }
    DSV4RT_RETURN_IF_ERROR(editor_.skip_contexts(sequences_, shape_));
    const SyntheticStream stream(options_.seed, "step bench input");
    std::vector<bf16> x(static_cast<std::size_t>(shape_.batch * engine_.config().hidden_size));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = to_bf16(stream.normal(i));
    return editor_.backend().upload(engine_.input(), x.data(), x.size() * sizeof(bf16));
  }

  Status step(bool capture, std::span<const std::int32_t> accepted) {
    DSV4RT_RETURN_IF_ERROR(check_watch(watch_));
    DSV4RT_ASSIGN_OR_RETURN(const Step step, engine_.prepare(entries_, {.pad_to_tokens = 0, .capture = capture}));
    std::int64_t nodes_before = 0;
    // The layers' inputs stay what they are: the bench has no experts.
    const auto count_nodes = [&](const LayerOutput&) -> Status {
      const std::int64_t nodes = editor_.backend().recorded_nodes();
      if (nodes == 0) return {};
      if (nodes_before == 0) layer_nodes_.clear();
      layer_nodes_.push_back(nodes - std::exchange(nodes_before, nodes));
      return {};
    };
    DSV4RT_RETURN_IF_ERROR(engine_.step(step, engine_.input(), count_nodes));
    return engine_.commit(step, accepted);
  }

  // The last layer's output of a step that is rolled back.
  Result<std::vector<bf16>> output(bool capture) {
    const std::vector<std::int32_t> none(entries_.size(), 0);
    DSV4RT_RETURN_IF_ERROR(step(capture, none));
    std::vector<bf16> out(static_cast<std::size_t>(shape_.batch * engine_.config().hidden_size));
    DSV4RT_RETURN_IF_ERROR(editor_.backend().download(out.data(), editor_.last_output(), out.size() * sizeof(bf16)));
    return out;
  }

  Status check_captured_equals_eager() {
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<bf16> eager, output(false));
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<bf16> captured, output(true));
    if (agree(relative_distance(eager, captured), editor_.deterministic(), kTokenTolerance))
      return {};  // the captured step may have padding rows
    return {StatusCode::kMismatch, "the last layer's output of a captured step differs from that of an eager one"};
  }

  Status time_steps(bool capture, StepBenchResult& result) {
    for (std::int32_t i = 0; i < kWarmUpSteps; ++i) DSV4RT_RETURN_IF_ERROR(step(capture, {}));
    DSV4RT_RETURN_IF_ERROR(engine_.synchronize());
    std::vector<double> host_us;
    const Clock::time_point begin = Clock::now();
    for (std::int32_t i = 0; i < options_.steps; ++i) {
      const Clock::time_point step_begin = Clock::now();
      DSV4RT_RETURN_IF_ERROR(step(capture, {}));
      host_us.push_back(ms_since(step_begin) * 1e3);
    }
    DSV4RT_RETURN_IF_ERROR(engine_.synchronize());
    (capture ? result.captured_ms : result.eager_ms) = ms_since(begin) / options_.steps;
    // The fastest step is one that did not wait for the device, which the host outruns by a few steps only.
    result.host_us = *std::min_element(host_us.begin(), host_us.end());
    result.nodes = engine_.graph_stats().last_nodes;
    result.layer_nodes = layer_nodes_;
    return {};
  }

  // As a serving loop runs them, which needs the outputs before it can make the next step.
  Status time_waited_steps(StepBenchResult& result) {
    const bool capture = editor_.backend().can_capture();
    std::vector<double> times;
    for (std::int32_t i = 0; i < options_.steps; ++i) {
      const Clock::time_point begin = Clock::now();
      DSV4RT_RETURN_IF_ERROR(step(capture, {}));
      DSV4RT_RETURN_IF_ERROR(engine_.synchronize());
      times.push_back(ms_since(begin));
    }
    result.waited_ms = median(std::move(times));
    return {};
  }

  // What every step must read at least once: weights, and the rows that attention and indexer visit.
  void count_bytes(StepBenchResult& result) const {
    const ModelConfig& config = engine_.config();
    const std::int64_t row = block_shape(editor_.row_format(), 1).row_bytes();
    const std::int64_t key = block_shape(editor_.index_format(), 1).row_bytes();
    for (const LayerId layer : engine_.layers()) {
      result.weight_bytes += editor_.layer_weight_bytes(layer);
      const LayerSpec& spec = editor_.layer_spec(layer);
      for (std::int32_t sequence = 0; sequence < shape_.batch; ++sequence) {
        const std::int64_t context = context_of(shape_, sequence);
        result.cache_bytes += std::min(config.sliding_window, context) * row;
        if (spec.ratio == 0) continue;
        const std::int64_t visible = context / spec.ratio;
        result.cache_bytes += spec.indexer ? std::min(config.index_topk, visible) * row + visible * key : visible * row;
      }
    }
  }

  Engine& engine_;
  EngineEditor editor_;
  const StepShape& shape_;
  const StepBenchOptions& options_;
  WorkWatch* watch_;  // may be null
  std::vector<SequenceId> sequences_;
  std::vector<StepEntry> entries_;
  std::vector<std::int64_t> layer_nodes_;  // nodes of each layer in the last capture
};

// Tokens that a measurement adds to every context.
std::int64_t tokens_of_steps(const StepBenchOptions& options) {
  return 3 * std::int64_t{options.steps} + 2 * kWarmUpSteps + 2;
}

}  // namespace

void leave_room_for_steps(std::span<StepShape> shapes, const StepBenchOptions& options, std::int64_t max_positions) {
  const std::int64_t most = max_positions - tokens_of_steps(options);
  for (StepShape& shape : shapes) {
    if (most > 0 && shape.context_tokens > most && shape.context_tokens <= max_positions) shape.context_tokens = most;
    shape.shortest_tokens = std::min(shape.shortest_tokens, shape.context_tokens);
  }
}

CacheLimits step_bench_limits(std::span<const StepShape> shapes, const StepBenchOptions& options) {
  CacheLimits limits{.max_sequences = 1, .max_context_tokens = 1, .max_step_tokens = 1, .pool_tokens = 1};
  for (const StepShape& shape : shapes) {
    const std::int64_t context = shape.context_tokens + tokens_of_steps(options);
    limits.max_sequences = std::max(limits.max_sequences, shape.batch);
    limits.max_step_tokens = std::max(limits.max_step_tokens, shape.batch);
    limits.max_context_tokens = std::max(limits.max_context_tokens, context);
    limits.pool_tokens = std::max(limits.pool_tokens, cached_tokens(shape) + shape.batch * tokens_of_steps(options));
  }
  return limits;
}

Result<StepBenchResult> bench_steps(Engine& engine, const StepShape& shape, const StepBenchOptions& options,
                                    WorkWatch* watch) {
  DSV4RT_RETURN_IF_ERROR(check_step_shape(shape));
  if (options.steps < 1) {
    return Status{StatusCode::kInvalidArgument, "steps: " + std::to_string(options.steps) + "; accepted: 1 or more"};
  }
  return StepBench(engine, shape, options, watch).run();
}

}  // namespace dsv4rt
