// Measures a step-time table (src/replay/step_table.h) on this machine: decode steps and parts of prompts through all
// layers of an engine, by a host that waits for each, with the checks of step_bench.h and prefill_bench.h.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dsv4rt/engine.h"
#include "replay/step_table.h"
#include "tools/lib/prefill_bench.h"
#include "tools/lib/step_bench.h"

namespace dsv4rt {

struct StepTableGrid {
  std::vector<StepShape> decode;      // one token of every sequence
  std::vector<PrefillShape> prefill;  // each run in one step
  StepBenchOptions steps;
  std::int32_t prefill_repeats = 3;  // the median counts

  // 1 to 256 sequences x 1K to 32K tokens, prompts of 16 to 8192 from empty and parts after 2K to
  // 32K: for GPUs.
  static StepTableGrid for_gpu();
};

// Limits that an engine needs for the grid; it also needs a draft budget of one token.
CacheLimits step_table_limits(const StepTableGrid& grid);

using StepTableProgress = std::function<void(const replay::StepPoint& point, std::int64_t done, std::int64_t total)>;

// kInvalidArgument for a grid without shapes of either kind, or with sequences of several lengths: points have one.
Status check_step_table_grid(const StepTableGrid& grid);

// Without provenance, which the caller knows. A decode point is the captured step where the backend can capture, and
// the eager one otherwise: prepared, run, waited for and committed, the median of the steps. Prefills run eagerly.
// `progress` is told every point, how many are done and how many there are. When the watch ends it, the table has the
// points so far, and the engine is not to be used any more. Errors of the benchmarks; kInvalidArgument for a grid
// without decode or prefill points.
Result<replay::StepTable> measure_step_table(Engine& engine, const StepTableGrid& grid,
                                             const StepTableProgress& progress = {}, WorkWatch* watch = nullptr);

}  // namespace dsv4rt
