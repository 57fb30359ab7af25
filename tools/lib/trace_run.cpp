#include "tools/lib/trace_run.h"

#include <algorithm>
#include <chrono>

#include "base/try.h"

namespace dsv4rt {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

Status keep_selection(EngineInspector& inspector, LayerRun& run, std::int32_t tokens) {
  DSV4RT_ASSIGN_OR_RETURN(const TopkRows selection, inspector.last_selection(run.layer, tokens));
  run.top_k = selection.top_k;
  run.topk_indices.insert(run.topk_indices.end(), selection.rows.begin(), selection.rows.end());
  run.selected_counts.insert(run.selected_counts.end(), selection.counts.begin(), selection.counts.end());
  return {};
}

// One step of `tokens` tokens from position `start` through every layer.
Status run_step(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options, std::int64_t start,
                std::int32_t tokens, bool decode, TraceRun& run) {
  const std::int32_t* token_ids = options.token_ids.empty() ? nullptr : options.token_ids.data() + start;
  const StepEntry entry{.sequence = run.sequence, .tokens = tokens, .token_ids = token_ids};
  DSV4RT_ASSIGN_OR_RETURN(const Step step, engine.prepare({&entry, 1}));
  EngineInspector inspector(engine);
  const std::int64_t hidden = engine.config().hidden_size;
  const auto run_layer = [&](LayerRun& layer) -> Status {
    const LayerTrace& recorded = *trace.find(layer.layer);
    const auto* x = reinterpret_cast<const Bf16Bits*>(recorded.input.data() + start * hidden);
    auto* out = reinterpret_cast<Bf16Bits*>(layer.output.data() + start * hidden);
    const Clock::time_point begin = Clock::now();
    DSV4RT_RETURN_IF_ERROR(engine.forward_layer_from_host(step, layer.layer, x, out));
    (decode ? layer.decode_ms : layer.prefill_ms) += milliseconds_since(begin);
    layer.tokens += tokens;
    return recorded.topk ? keep_selection(inspector, layer, tokens) : Status{};
  };
  Status status;
  const auto layers = static_cast<std::int64_t>(run.layers.size());
  for (std::int64_t i = 0; i < layers && status.ok(); ++i) {
    if (options.watch != nullptr && options.watch->asks_to_end()) {
      run.stopped = true;
      return engine.cancel(step).status();
    }
    status = run_layer(run.layers[static_cast<std::size_t>(i)]);
    if (options.watch != nullptr && status.ok()) options.watch->tell(i + 1, layers);
  }
  if (status.ok()) status = engine.commit(step);
  if (!status.ok()) (void)engine.cancel(step);  // the first failure is what is told
  ++run.steps;
  (decode ? run.decode_tokens : run.prefill_tokens) += tokens;
  return status;
}

// First token fed alone.
std::int64_t decode_start(const AttentionTrace& trace, const TraceRunOptions& options) {
  return options.decode_from < 0 ? trace.prefill_tokens : options.decode_from;
}

Status check_options(const AttentionTrace& trace, const TraceRunOptions& options) {
  const std::int64_t total = trace.tokens();
  if (decode_start(trace, options) > total) {
    return {StatusCode::kInvalidArgument, "decode-from " + std::to_string(options.decode_from) +
                                              " is beyond the trace's " + std::to_string(total) + " tokens"};
  }
  if (options.chunk_tokens < 0) {
    return {StatusCode::kInvalidArgument,
            "chunk " + std::to_string(options.chunk_tokens) + "; accepted: 0 (whole prompt) or more"};
  }
  if (!options.token_ids.empty() && static_cast<std::int64_t>(options.token_ids.size()) != total) {
    return {StatusCode::kInvalidArgument, std::to_string(options.token_ids.size()) + " token ids for the trace's " +
                                              std::to_string(total) + " tokens"};
  }
  return {};
}

}  // namespace

Result<TraceRun> run_trace(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options,
                           const TraceProgress& progress) {
  DSV4RT_RETURN_IF_ERROR(check_options(trace, options));
  SequenceId sequence;
  if (options.token_ids.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(sequence, engine.create_sequence());
  } else {
    const auto prompt = static_cast<std::size_t>(decode_start(trace, options));
    DSV4RT_ASSIGN_OR_RETURN(const SequenceStart start, engine.create_sequence(options.token_ids.first(prompt), {}));
    sequence = start.sequence;
  }
  Result<TraceRun> run = continue_trace(engine, trace, options, sequence, progress);
  // What failed is what is told; a latched engine keeps its sequences.
  if (!run) (void)engine.release(sequence);
  return run;
}

Result<TraceRun> continue_trace(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options,
                                SequenceId sequence, const TraceProgress& progress) {
  DSV4RT_RETURN_IF_ERROR(check_options(trace, options));
  const std::int64_t total = trace.tokens();
  const std::int64_t decode_from = decode_start(trace, options);
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t held, engine.length(sequence));
  TraceRun run;
  run.sequence = sequence;
  for (const LayerId layer : engine.layers()) {
    LayerRun layer_run;
    layer_run.layer = layer;
    layer_run.output.resize(static_cast<std::size_t>(total * engine.config().hidden_size));
    run.layers.push_back(std::move(layer_run));
  }

  const std::int64_t chunk = options.chunk_tokens == 0 ? std::max<std::int64_t>(decode_from, 1) : options.chunk_tokens;
  for (std::int64_t done = held; done < total;) {
    const bool decode = done >= decode_from;
    const std::int64_t tokens = decode ? 1 : std::min(chunk, decode_from - done);
    DSV4RT_RETURN_IF_ERROR(run_step(engine, trace, options, done, static_cast<std::int32_t>(tokens), decode, run));
    if (run.stopped) return run;
    done += tokens;
    if (progress) progress(done, total);
  }
  return run;
}

}  // namespace dsv4rt
