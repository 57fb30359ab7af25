// A replay: requests arrive, a scheduler serves them, the numbers are collected and written.
//
// One thread calls callbacks and executors, but for the steps of several executors (replay_requests). Equal requests,
// options and seeds give equal results and files but for what is named wall_* (with a VirtualClock and an executor that
// keeps to it).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "dsv4rt/model.h"
#include "dsv4rt/status.h"
#include "replay/arrivals.h"
#include "replay/clock.h"
#include "replay/model_executor.h"
#include "replay/replay_executor.h"
#include "replay/router.h"
#include "replay/run_metrics.h"
#include "replay/run_summary.h"
#include "replay/scheduler.h"
#include "replay/step_table.h"

namespace dsv4rt::replay {

struct ReplayProgress {
  RequestTotals requests;
  std::int64_t now_ns = 0;  // time of the replay
  std::int64_t steps = 0;
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  double most_used_share = 0;  // live blocks of the fullest role
};

struct ReplayOptions {
  SchedulerOptions scheduler;
  ArrivalOptions arrivals;           // its seed is `seed`
  Route route = Route::kRoundRobin;  // where there are several machines
  double acceptance = 0;             // probability that a draft is right if those before it are
  double length_scale = 1;           // lengths of requests are multiplied by it: length_scale.h
  std::uint64_t seed = 0;
  ServiceLevels service_levels;
  // Files, each complete or absent; empty: not written.
  std::filesystem::path requests_file;  // request_writer.h
  std::filesystem::path timeline_file;  // timeline_writer.h
  std::filesystem::path metrics_file;   // prometheus_text
  std::filesystem::path summary_file;   // summary_json
  std::int64_t timeline_max_events = 2'000'000;
  // Asked before every step: true ends the replay, with everything that has not ended aborted.
  std::function<bool()> stop;
  // Told every progress_steps steps and at the end.
  std::function<void(const ReplayProgress&)> on_progress;
  std::int64_t progress_steps = 256;
  std::int64_t check_every_steps = 0;  // cache invariants from scratch; 0: at the end only
};

// kInvalidArgument for options; failures of the supply, the executor and the files, after which whatever still ran has
// been released if the executor can; kInternal when the totals do not agree at the end: arrived = finished + rejected +
// aborted, nothing live in the cache, invariants of the cache.
Result<RunSummary> replay_requests(RequestSupply supply, ReplayExecutor& executor, Clock& clock,
                                   const ReplayOptions& options);

inline constexpr std::int32_t kMaxMachines = 1024;

struct ReplayMachine {
  ReplayExecutor& executor;
  Clock& clock;  // its own
};

// The same with 1 to kMaxMachines machines, whose executors have the same limits and formats; options.route says which
// one a request goes to. Each of several has a thread of its own: steps that begin before the next arrival run at the
// same time where no arrival depends on the end of a request (no closed loop, no sessions); otherwise one after
// another. What becomes of requests is the same either way, if steps take the same time.
Result<RunSummary> replay_requests(RequestSupply supply, std::span<const ReplayMachine> machines,
                                   const ReplayOptions& options);

// Sets limits of the scheduler that are 0 to those of the cache. kInvalidArgument for limits beyond these.
Status adopt_limits(SchedulerOptions& scheduler, const CacheLimits& cache);

struct ModelReplayOptions {
  ReplayOptions replay;  // scheduler limits that are 0 are those of `cache`
  ModelConfig config;
  ModelExecutorOptions cache;  // its draft budget is at least the scheduler's draft_tokens
  StepTable table;
  ExpertTimes experts;
  std::int32_t machines = 1;  // up to kMaxMachines; each with a cache, a queue and limits of its own, all alike
};

// The replay on a model of a machine, in virtual time.
Result<RunSummary> run_model(RequestSupply supply, const ModelReplayOptions& options);

}  // namespace dsv4rt::replay
