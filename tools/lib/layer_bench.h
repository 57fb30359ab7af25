// Times the layers of an engine: prefill of a prompt and decode at a context length.
//
// Inputs are random (never zeros). The result is checked in the same run: the last decoded token is
// computed again as the end of a differently chunked prefill, and both must agree byte for byte.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4rt/engine.h"
#include "tools/lib/work_watch.h"

namespace dsv4rt {

struct LayerBenchOptions {
  std::int64_t prefill_tokens = 1024;  // one step; at most the engine's max_step_tokens
  std::int32_t prefill_repeats = 3;    // the median counts
  std::int64_t context_tokens = 2048;  // cached tokens when decoding starts
  std::int32_t decode_steps = 20;      // the median counts
  std::int32_t batch = 1;              // sequences decoded together
  std::uint64_t seed = 0;
};

struct LayerBenchResult {
  LayerId layer;
  double prefill_ms = 0;  // median; 0: not timed before the bench was stopped
  double decode_ms = 0;   // median of one step of `batch` tokens; 0 as above
};

// Limits that an engine needs for these options.
CacheLimits bench_limits(const LayerBenchOptions& options);

// The watch is asked before every layer and told of every layer that ran; when it ends the bench, the medians are of
// what was timed, nothing is checked, and the engine is not to be used any more.
// kMismatch naming the layer when the check fails; kInvalidArgument for options that are not positive.
Result<std::vector<LayerBenchResult>> bench_layers(Engine& engine, const LayerBenchOptions& options,
                                                   WorkWatch* watch = nullptr);

}  // namespace dsv4rt
