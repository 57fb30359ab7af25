// Times decode steps of several independent engines, a thread each: each alone, then all at the same time.
//
// Contexts are those of step_bench.h: random rows that nobody computed. The tokens of a step are not accepted, so that
// every step reads the same. A thread waits for the outputs of a step before it makes the next, as a serving loop does.
// Checked in the same run: all engines give the same bytes, alone and together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4rt/engine.h"
#include "tools/lib/step_bench.h"

namespace dsv4rt {

struct EngineTimes {
  double alone_ms = 0;     // one step while the other engines rest; the mean of all
  double together_ms = 0;  // while all others step too
};

// Limits that an engine needs for all of these shapes.
CacheLimits engines_bench_limits(std::span<const StepShape> shapes);

// Times of every engine, which need a draft budget of one token. kMismatch when outputs differ; kInvalidArgument for
// numbers that are not positive and for no engine; otherwise the first failure of any engine, kInternal for what a
// thread threw. The watch is asked before every step; when it ends the bench, kFailedPrecondition is returned and the
// watch is stopped(). After a failure the engines keep their sequences and are not to be measured again.
Result<std::vector<EngineTimes>> bench_engines(std::span<const std::unique_ptr<Engine>> engines, const StepShape& shape,
                                               const StepBenchOptions& options, WorkWatch* watch = nullptr);

}  // namespace dsv4rt
