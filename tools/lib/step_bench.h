// Times whole decode steps of an engine, all its layers one after another: captured where the backend can
// capture, and eagerly.
//
// Caches hold random rows and the context is not computed (EngineEditor::fill_caches, skip_tokens), so
// long contexts cost no prefill. Each layer reads weights and caches of its own: nothing is warm. Checked in
// the same run: a captured step gives the bytes of an eager one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4rt/engine.h"
#include "tools/lib/step_shape.h"
#include "tools/lib/work_watch.h"

namespace dsv4rt {

struct StepBenchOptions {
  std::int32_t steps = 50;  // timed, after a few for warming up
  std::uint64_t seed = 0;
  bool fill = true;  // write random rows first; false: the caches hold valid rows of an earlier measurement
};

struct StepBenchResult {
  double captured_ms = 0;  // one step, steps enqueued back to back; 0 where the backend cannot capture
  double eager_ms = 0;
  double waited_ms = 0;    // one captured (or else eager) step by a host that waits for its outputs; median
  double host_us = 0;      // host's share of a captured (or else eager) step: prepare, upload, enqueue, commit
  std::int64_t nodes = 0;  // nodes of the captured graph
  // Nodes of each layer in that graph, in the engine's order; empty where none was captured.
  std::vector<std::int64_t> layer_nodes;
  std::int64_t weight_bytes = 0;  // read by a step
  std::int64_t cache_bytes = 0;   // rows and keys read by a step at the context length
};

// Contexts that a model of `max_positions` has, but with no room for the steps that are timed after them, begin so many
// tokens earlier; others stay. A shape's shortest is lowered to its longest where it would be above that.
void leave_room_for_steps(std::span<StepShape> shapes, const StepBenchOptions& options, std::int64_t max_positions);

// Limits that an engine needs for all of these shapes; it also needs a draft budget of one token.
CacheLimits step_bench_limits(std::span<const StepShape> shapes, const StepBenchOptions& options);

// kMismatch when captured and eager steps differ; kInvalidArgument for a shape that check_step_shape() refuses, and
// steps that are not positive.
// The watch is asked before every step; when it ends the bench, kFailedPrecondition is returned, the watch is stopped()
// and the engine is not to be used any more.
Result<StepBenchResult> bench_steps(Engine& engine, const StepShape& shape, const StepBenchOptions& options,
                                    WorkWatch* watch = nullptr);

}  // namespace dsv4rt
