// What the benchmarks of preparing steps share: sizes, checks and timing.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "cache/kv_cache_manager.h"

namespace dsv4rt {

inline constexpr std::int32_t kSequences = 256;
inline constexpr std::int64_t kContextTokens = 16384;

// Thrown and reported by main: a benchmark of wrong results is worth nothing.
template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().to_string());
  return std::move(*result);
}

inline void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.to_string());
}

inline void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("benchmark result is wrong: ") + what);
}

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Only prepare_forward is timed; the rest of a round restores the situation it is measured in.
// The counters p50_us and p99_us tell the cost apart from what a busy machine adds to the mean.
template <class Prepare, class Finish>
void time_prepare(benchmark::State& state, Prepare&& prepare, Finish&& finish) {
  std::vector<double> seconds;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    Result<StepPlan> plan = prepare();
    seconds.push_back(seconds_since(start));
    state.SetIterationTime(seconds.back());
    finish(take(std::move(plan)));
  }
  std::sort(seconds.begin(), seconds.end());
  state.counters["p50_us"] = 1e6 * seconds[seconds.size() / 2];
  state.counters["p99_us"] = 1e6 * seconds[seconds.size() * 99 / 100];
}

}  // namespace dsv4rt
