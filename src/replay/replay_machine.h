// A machine of a replay, what it was given and what it did; and sums over several.
#pragma once

#include <cstdint>
#include <optional>

#include "dsv4rt/prefix_cache.h"
#include "dsv4rt/status.h"
#include "replay/clock.h"
#include "replay/replay_executor.h"
#include "replay/run_summary.h"
#include "replay/scheduler.h"

namespace dsv4rt::replay {

struct Machine {
  Machine(ReplayExecutor& with_executor, Clock& with_clock) : executor(with_executor), clock(with_clock) {}

  // Whether it has something to run, or has run a step that nobody looked at.
  [[nodiscard]] bool busy() const { return ahead || !scheduler->idle(); }
  // When the next thing that it does begins. Precondition: it is busy.
  [[nodiscard]] std::int64_t begin_ns() const { return ahead ? ahead_begin_ns : clock.now_ns(); }
  // Runs a step, whose report waits in `ahead`.
  void run_ahead() {
    ahead_begin_ns = clock.now_ns();
    ahead.emplace(scheduler->step());
  }

  ReplayExecutor& executor;
  Clock& clock;  // the end of its latest step
  std::optional<Scheduler> scheduler;
  CacheOccupancy occupancy;  // during its latest step, or at present when it has nothing to do
  QueueState queue;          // after what was last looked at: a step that ran ahead does not show before its time
  MachineTotals totals;
  std::optional<Result<StepReport>> ahead;
  std::int64_t ahead_begin_ns = 0;
};

// Sums over machines, which have the same roles.
void add(CacheOccupancy& sum, const CacheOccupancy& part);
void add(ExecutorCounts& sum, const ExecutorCounts& part);
void add(PrefixStats& sum, const PrefixStats& part);

}  // namespace dsv4rt::replay
