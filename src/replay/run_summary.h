// The result of a replay, and its texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dsv4rt/memory_plan.h"
#include "dsv4rt/prefix_cache.h"
#include "replay/arrivals.h"
#include "replay/output_digest.h"
#include "replay/replay_executor.h"
#include "replay/router.h"
#include "replay/run_metrics.h"
#include "replay/scheduler.h"
#include "replay/step_time_model.h"

namespace dsv4rt::replay {

// Where the step times of a model run come from.
struct StepTimeOrigin {
  std::vector<std::pair<std::string, std::string>> provenance;  // the table's
  std::size_t points = 0;
  ExpertTimes experts;
};

// What one of several machines did.
struct MachineTotals {
  std::int64_t requests = 0;  // sent to it, rejected ones included
  std::int64_t admitted_input_tokens = 0;
  std::int64_t hit_tokens = 0;  // had by its cache, among these
  std::int64_t steps = 0;
  std::int64_t busy_ns = 0;
};

struct RunSummary {
  std::string mode;  // "model", "real"
  SchedulerOptions scheduler;
  ArrivalOptions arrivals;
  double acceptance = 0;
  double length_scale = 1;
  std::uint64_t seed = 0;
  ServiceLevels service_levels;
  RunMetrics metrics;
  CacheLimits limits;
  MemoryPlan memory;
  PrefixStats prefixes;
  ExecutorCounts executor;
  OutputDigest outputs;
  std::optional<PrefixEviction> eviction;    // unset: not known
  std::optional<StepTimeOrigin> step_times;  // set for model runs
  std::optional<EngineOrigin> engine;        // set for real runs
  std::optional<Route> route{};           // set, and machines with it, for runs of more than one machine
  std::vector<MachineTotals> machines{};  // limits and memory are those of each
  bool stopped = false;                      // ended by ReplayOptions::stop
  double wall_ms = 0;                        // host time that the replay took

  // From the first arrival to the last end.
  [[nodiscard]] double duration_ms() const noexcept;
  [[nodiscard]] double wall_speedup() const noexcept { return wall_ms > 0 ? duration_ms() / wall_ms : 0; }
};

// One JSON object, indented. The same run gives the same text but for the fields named wall_*.
std::string summary_json(const RunSummary& summary);

// Prometheus text format 0.0.4, names beginning with dsv4rt_replay_. Times are seconds of the replay, latencies a
// summary with quantiles.
std::string prometheus_text(const RunSummary& summary);

}  // namespace dsv4rt::replay
