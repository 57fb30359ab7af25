// Feeds an attention trace through an engine, one sequence, chunk by chunk, then token by token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "dsv4rt/engine.h"
#include "tools/lib/attention_trace.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/work_watch.h"

namespace dsv4rt {

struct TraceRunOptions {
  std::int64_t chunk_tokens = 0;  // prefill chunk; 0: the whole prompt in one step
  std::int64_t decode_from = -1;  // first token fed alone; -1: the trace's n_prefill
  // Ids of the trace's tokens, [n]: the engine's prefix cache gets to know them. Empty: they have none.
  std::span<const std::int32_t> token_ids = {};
  // Asked before every layer, and told of the layers of a step as they end. Null: nobody watches.
  WorkWatch* watch = nullptr;
};

// What one layer produced, next to what it took.
struct LayerRun {
  LayerId layer;
  std::vector<bf16> output;                // [n, d]
  std::vector<std::int32_t> topk_indices;  // [n, top_k] where the layer has an indexer
  std::vector<std::int32_t> selected_counts;
  std::int32_t top_k = 0;
  double prefill_ms = 0;
  double decode_ms = 0;
  std::int64_t tokens = 0;  // run, also by a step that was then stopped before its last layer
};

struct TraceRun {
  SequenceId sequence;              // live in the engine, so that its cache can be read
  std::int64_t prefill_tokens = 0;  // fed in chunks
  std::int64_t decode_tokens = 0;   // fed one by one
  std::int64_t steps = 0;
  // The watch ended the run between two layers: that step was cancelled, and the counts above are of complete steps.
  bool stopped = false;
  std::vector<LayerRun> layers;
};

// Called after every step with the tokens done so far.
using TraceProgress = std::function<void(std::int64_t done, std::int64_t total)>;

// The engine must have been created for the trace's layers and at least its tokens; it needs a free
// sequence, which a failed run gives back. With ids the prompt is what the sequence is created with. kInvalidArgument
// naming the option for a chunk, decode_from or number of ids out of range.
Result<TraceRun> run_trace(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options,
                           const TraceProgress& progress);
// The same for a sequence that holds the trace's first tokens already: runs the others. Outputs of those that it holds
// are 0.
Result<TraceRun> continue_trace(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options,
                                SequenceId sequence, const TraceProgress& progress);

}  // namespace dsv4rt
