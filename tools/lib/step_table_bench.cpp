#include "tools/lib/step_table_bench.h"

#include <algorithm>
#include <cmath>

#include "base/try.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt {
namespace {

// A table with fewer digits says as much: nanoseconds.
double to_table_us(double ms) {
  return std::round(ms * 1e6) / 1e3;
}

Result<double> prefill_ms(Engine& engine, const PrefillShape& shape, const StepTableGrid& grid, WorkWatch* watch) {
  if (shape.context_tokens > 0) {
    return time_prefill_after(engine, shape, grid.prefill_repeats, grid.steps.seed, watch);
  }
  DSV4RT_ASSIGN_OR_RETURN(const PrefillBenchResult result,
                          bench_prefill(engine, shape.tokens, grid.prefill_repeats, grid.steps.seed, watch));
  return result.prefill_ms;
}

}  // namespace

StepTableGrid StepTableGrid::for_gpu() {
  StepTableGrid grid;
  for (const std::int32_t batch : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    for (const std::int64_t context : {1024, 4096, 8192, 32768}) {
      grid.decode.push_back({.batch = batch, .context_tokens = context});
    }
  }
  for (const std::int32_t tokens : {16, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
    grid.prefill.push_back({.tokens = tokens, .context_tokens = 0});
  }
  for (const std::int64_t context : {2048, 8192, 32768}) {
    for (const std::int32_t tokens : {16, 128, 512, 2048, 8192}) {
      grid.prefill.push_back({.tokens = tokens, .context_tokens = context});
    }
  }
  return grid;
}

CacheLimits step_table_limits(const StepTableGrid& grid) {
  CacheLimits limits = step_bench_limits(grid.decode, grid.steps);
  for (const PrefillShape& shape : grid.prefill) {
    const std::int64_t length = shape.context_tokens + shape.tokens;
    limits.max_step_tokens = std::max(limits.max_step_tokens, shape.tokens);
    limits.max_context_tokens = std::max(limits.max_context_tokens, length);
    limits.pool_tokens = std::max(limits.pool_tokens, length);
  }
  return limits;
}

Status check_step_table_grid(const StepTableGrid& grid) {
  if (grid.decode.empty() || grid.prefill.empty()) {
    return {StatusCode::kInvalidArgument, "step table: " + std::to_string(grid.decode.size()) + " decode and " +
                                              std::to_string(grid.prefill.size()) +
                                              " prefill shapes; accepted: 1 or more of both"};
  }
  for (const StepShape& shape : grid.decode) {
    if (shape.shortest_tokens == 0) continue;
    return {StatusCode::kInvalidArgument, "step table: a decode shape of " + std::to_string(shape.batch) + " x " +
                                              context_text(shape) +
                                              " tokens; accepted: sequences of one length, as a point has"};
  }
  return {};
}

Result<replay::StepTable> measure_step_table(Engine& engine, const StepTableGrid& grid,
                                             const StepTableProgress& progress, WorkWatch* watch) {
  DSV4RT_RETURN_IF_ERROR(check_step_table_grid(grid));
  replay::StepTable table;
  const auto total = static_cast<std::int64_t>(grid.decode.size() + grid.prefill.size());
  const auto add = [&](const replay::StepPoint& point) {
    table.points.push_back(point);
    if (progress) progress(point, static_cast<std::int64_t>(table.points.size()), total);
  };
  // Once for all shapes: pools of many sequences take a second to fill.
  DSV4RT_RETURN_IF_ERROR(EngineEditor(engine).fill_caches(grid.steps.seed));
  StepBenchOptions steps = grid.steps;
  steps.fill = false;
  const auto stopped = [watch] { return watch != nullptr && watch->stopped(); };
  for (const StepShape& shape : grid.decode) {
    const Result<StepBenchResult> result = bench_steps(engine, shape, steps, watch);
    if (stopped()) return table;
    DSV4RT_RETURN_IF_ERROR(result.status());
    add({.kind = replay::StepKind::kDecode,
         .sequences = shape.batch,
         .context_tokens = shape.context_tokens,
         .tokens = 1,
         .microseconds = to_table_us(result->waited_ms)});
  }
  for (const PrefillShape& shape : grid.prefill) {
    const Result<double> ms = prefill_ms(engine, shape, grid, watch);
    if (stopped()) return table;
    DSV4RT_RETURN_IF_ERROR(ms.status());
    add({.kind = replay::StepKind::kPrefill,
         .sequences = 1,
         .context_tokens = shape.context_tokens,
         .tokens = shape.tokens,
         .microseconds = to_table_us(*ms)});
  }
  return table;
}

}  // namespace dsv4rt
