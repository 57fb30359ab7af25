// Many requests through an engine: memory stays where it was, and no block is left.
//
// DSV4RT_REPLAY_SOAK_REQUESTS makes it another number of requests.
#include <cstdio>
#include <cstdlib>
#include <malloc.h>

#include <gtest/gtest.h>

#include "engine_replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

TEST(EngineReplaySoak, ManyRequestsTakeNoMoreMemoryThanAFew) {
  const char* asked = std::getenv("DSV4RT_REPLAY_SOAK_REQUESTS");
  const std::int64_t requests = asked == nullptr ? 1000 : std::atoll(asked);
  ASSERT_GE(requests, 1000);
  EngineReplayOptions options = crowded_options(Preemption::kSnapshot);
  options.executor.snapshot_bytes = 600'000;
  // Clients that wait for their answers: how many requests are in flight does not depend on the machine.
  options.replay.arrivals.mode = ArrivalMode::kClosedLoop;
  options.replay.arrivals.concurrency = 12;
  options.replay.check_every_steps = 2000;
  options.replay.progress_steps = 64;
  std::int64_t early = 0;
  std::int64_t drift = 0;
  std::int64_t checks = 0;
  options.replay.on_progress = [&](const ReplayProgress& progress) {
    if (progress.requests.arrived < 400) return;
    const std::int64_t bytes = heap_bytes();
    if (early == 0) early = bytes;
    drift = std::max(drift, std::abs(bytes - early));
    ++checks;
  };
  const auto summary = run_engine(answered_requests(0, requests), options);
  ASSERT_OK(summary);
  const RequestTotals& totals = summary->metrics.requests();
  std::printf(
      "[     INFO ] %lld requests, %lld steps, %lld preemptions, %lld of them by snapshot, %lld hit tokens: heap "
      "drifts by at most %lld bytes in %.1f s\n",
      static_cast<long long>(totals.finished), static_cast<long long>(summary->metrics.steps().steps),
      static_cast<long long>(totals.preemptions), static_cast<long long>(totals.snapshots),
      static_cast<long long>(totals.hit_tokens), static_cast<long long>(drift), summary->wall_ms / 1e3);
  // Snapshots that are there or not are no drift.
  EXPECT_LE(drift, (std::int64_t{1} << 20) + options.executor.snapshot_bytes);
  EXPECT_GT(checks, 5);
  EXPECT_EQ(totals.finished, requests);
  EXPECT_GT(totals.hit_tokens, 0);
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.snapshots, 0);
  EXPECT_EQ(summary->outputs.requests(), requests);
  EXPECT_EQ(summary->metrics.latest().live_sequences, 0);
  for (const RoleOccupancy& role : summary->metrics.latest().roles) EXPECT_EQ(role.live_blocks, 0);
}

}  // namespace
}  // namespace dsv4rt::replay::test
