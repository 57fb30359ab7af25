// Engine::step: the layers of a step in order, one by one or as a captured graph.
//
// A graph bakes in pointers and the shape of the step (GraphKey). What changes from step to step lies in
// the metadata buffer, which is uploaded before the graph runs; table deltas and block copies, whose number
// changes, are applied there too, outside the graph.

#include <algorithm>
#include <bit>
#include <exception>
#include <string>

#include "base/try.h"
#include "engine/engine_impl.h"
#include "engine/step_shape.h"

namespace dsv4rt {
namespace {

std::int64_t sum_of_tokens(std::span<const StepEntry> entries) {
  std::int64_t tokens = 0;
  for (const StepEntry& entry : entries) tokens += entry.tokens;
  return tokens;
}

// The step as the graph sees it: the bounds rounded up, nothing else that could differ between steps.
StepHeader captured_counts(const StepHeader& counts, std::int32_t draft_budget) {
  return {.tokens = counts.tokens,
          .valid_tokens = counts.tokens,
          .sequences = counts.tokens,
          .table_deltas = 0,
          .block_copies = 0,
          .longest_entry = entry_bucket(counts.longest_entry, draft_budget, counts.tokens),
          .context_end = context_bucket(counts.context_end),
          .reserved = 0};
}

}  // namespace

bool Engine::Impl::captures(std::span<const StepEntry> entries, const StepOptions& asked) const {
  const std::int64_t most = std::min(options.graphs.max_tokens, options.limits.max_step_tokens);
  const std::int64_t tokens = sum_of_tokens(entries);
  if (!backend->can_capture() || options.graphs.max_graphs == 0 || tokens <= 0 || tokens > most) return false;
  // With its padding a step may be one that is dealt out, and such run eagerly.
  return settings.context == nullptr || alone(entries) || captured_tokens(entries, asked) < settings.context_min_tokens;
}

std::int32_t Engine::Impl::captured_tokens(std::span<const StepEntry> entries, const StepOptions& asked) const {
  const auto tokens = std::max(static_cast<std::int32_t>(sum_of_tokens(entries)), asked.pad_to_tokens);
  if (tokens > options.limits.max_step_tokens) return tokens;  // refused by the manager
  return std::min(token_bucket(tokens), options.limits.max_step_tokens);
}

Status Engine::Impl::run_layers(const StepView& view, const Bf16Bits* x, const LayerHook& hook) {
  auto* input = layer_input.as<Bf16Bits>();
  auto* output = layer_output.as<Bf16Bits>();
  const Bf16Bits* of_layer = x;
  for (std::size_t local = 0; local < layers.size(); ++local) {
    DSV4RT_RETURN_IF_ERROR(run_layer(local, view, of_layer, output));
    const bool last = local + 1 == layers.size();
    DSV4RT_RETURN_IF_ERROR(call_hook(hook, {.layer = layer_ids[local],
                                            .output = output,
                                            .next_input = last ? nullptr : input,
                                            .stream = backend->native_stream()}));
    of_layer = input;
  }
  return {};
}

Status Engine::Impl::run_eagerly(const Bf16Bits* x, const LayerHook& hook) {
  DSV4RT_RETURN_IF_ERROR(start_step());
  return run_layers(step.view, x, hook);
}

Status Engine::Impl::run_captured(const Bf16Bits* x, const LayerHook& hook, std::uint64_t hook_key) {
  if (std::find(step.layer_done.begin(), step.layer_done.end(), true) != step.layer_done.end()) {
    return {StatusCode::kFailedPrecondition, "step: layers already ran; a captured step runs as a whole"};
  }
  const StepHeader counts = captured_counts(step.plan.counts, options.draft_budget_tokens);
  const GraphKey key{.tokens = counts.tokens,
                     .longest_entry = counts.longest_entry,
                     .context_end = counts.context_end,
                     .input = x,
                     .hook = hook_key};
  const CapturedWork* work = graphs.find(key);
  if (work == nullptr) {
    // Captured before anything of the step is enqueued: a hook that fails leaves the step as it was.
    DSV4RT_ASSIGN_OR_RETURN(std::unique_ptr<CapturedWork> captured, capture_layers(counts, x, hook));
    DSV4RT_RETURN_IF_ERROR(make_room_for(*captured));
    work = &graphs.insert(key, std::move(captured));
    ++graph_stats.captures;
    graph_stats.evictions = graphs.evictions();
  }
  DSV4RT_RETURN_IF_ERROR(start_step());
  DSV4RT_RETURN_IF_ERROR(latch_if_broken(backend->launch(*work)));
  step.layer_done.assign(step.layer_done.size(), true);
  ++graph_stats.replays;
  graph_stats.last_nodes = work->nodes();
  return watch_ranks();
}

Result<std::unique_ptr<CapturedWork>> Engine::Impl::capture_layers(const StepHeader& counts, const Bf16Bits* x,
                                                                   const LayerHook& hook) {
  StepView view = step.view;
  view.counts = counts;
  DSV4RT_RETURN_IF_ERROR(latch_if_broken(backend->begin_capture()));
  Status recorded;
  capturing = true;
  try {
    recorded = run_layers(view, x, hook);
  } catch (...) {  // the stream must leave capture mode whatever happens
    recorded = of_exception("step", std::current_exception());
  }
  capturing = false;
  auto work = backend->end_capture();
  DSV4RT_RETURN_IF_ERROR(recorded);
  if (!work.ok()) return latch_if_broken(work.status());
  return work;
}

// Graphs that leave may still be running. Leaving is rare, or reported.
Status Engine::Impl::make_room_for(const CapturedWork& work) {
  if (graphs.has_room_for(work)) return {};
  DSV4RT_RETURN_IF_ERROR(latch_if_broken(backend->synchronize()));
  const auto evictions = static_cast<std::uint64_t>(graphs.evictions()) + 1;
  if (options.on_warning && std::has_single_bit(evictions)) {
    warn("captured steps push each other out: " + std::to_string(evictions) + " of " +
         std::to_string(graph_stats.captures + 1) + " graphs have left, " + std::to_string(graphs.size()) +
         " are kept (GraphOptions::max_graphs, max_bytes); each new shape of a step, address of x or hook_key "
         "is a graph of its own");
  }
  return {};
}

}  // namespace dsv4rt
