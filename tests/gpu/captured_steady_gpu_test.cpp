// 10,000 captured steps: the host never waits for the device and nothing is allocated.
#include <atomic>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <thread>
#include <vector>

#include "engine/graph_cache.h"
#include "gpu/support/gpu.h"
#include "support/count_allocations.h"
#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

// Holds the stream back until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  static void CUDART_CB wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open.load()) std::this_thread::yield();
  }
};

class CapturedSteadyGpuTest : public GpuTest {};

// Decode steps behind a closed gate: were any call to wait for the device, the test would not end.
TEST_F(CapturedSteadyGpuTest, NoWaitAndNoAllocation) {
  constexpr int kSteps = 10000;
  constexpr int kStepsBehindGate = kStepUploads / 2;
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  EngineOptions options = golden.options();
  options.backend = "cuda";
  options.limits = {.max_sequences = 4, .max_context_tokens = 4096, .max_step_tokens = 16, .pool_tokens = 0};
  options.draft_budget_tokens = 3;
  options.check_outputs = true;  // its results are not waited for either
  const auto engine = make_engine(options);
  std::vector<StepEntry> entries;
  for (int i = 0; i < 4; ++i) entries.push_back({*engine->create_sequence(), 1});
  auto stream = static_cast<cudaStream_t>(engine->stream());
  const auto hook = [](const LayerOutput&) -> Status { return {}; };
  const std::vector<std::int32_t> accepted{1, 1, 1, 1};

  std::int64_t length = 0;
  const auto one_step = [&]() -> Status {
    if (length == 4000) {  // back to the start, so that block tables change all the time
      for (const StepEntry& entry : entries) {
        if (Status status = engine->truncate(entry.sequence, 0); !status.ok()) return status;
      }
      length = 0;
    }
    const auto step = engine->prepare(entries, {.pad_to_tokens = 0, .capture = true});
    if (!step.ok()) return step.status();
    if (Status status = engine->step(*step, engine->input(), hook); !status.ok()) return status;
    ++length;
    return engine->commit(*step, accepted);
  };
  std::size_t free_before = 0;
  std::size_t free_after = 0;
  std::size_t total = 0;
  // Every context bucket is captured before counting begins.
  while (length < 4000) ASSERT_OK(one_step());
  ASSERT_OK(engine->synchronize());

  ASSERT_EQ(cudaMemGetInfo(&free_before, &total), cudaSuccess);
  const std::int64_t captures = engine->graph_stats().captures;
  const std::uint64_t allocated_before = allocations;
  for (int done = 0; done < kSteps; done += kStepsBehindGate) {
    Gate gate;
    ASSERT_EQ(cudaLaunchHostFunc(stream, Gate::wait, &gate), cudaSuccess);
    for (int i = 0; i < kStepsBehindGate; ++i) ASSERT_OK(one_step());
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    gate.open = true;
    ASSERT_OK(engine->synchronize());  // the gate lives in this scope
  }
  EXPECT_EQ(allocations, allocated_before);
  ASSERT_EQ(cudaMemGetInfo(&free_after, &total), cudaSuccess);
  EXPECT_EQ(free_after, free_before);
  EXPECT_EQ(engine->graph_stats().captures, captures);
}

// What the plan takes for the nodes of captured graphs is enough.
TEST_F(CapturedSteadyGpuTest, GraphsTakeNoMoreThanPlanned) {
  constexpr int kGraphs = 48;
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  EngineOptions options = golden.options();
  options.backend = "cuda";
  options.limits = {.max_sequences = 4, .max_context_tokens = 4096, .max_step_tokens = 16, .pool_tokens = 0};
  const auto engine = make_engine(options);
  const StepEntry entry{*engine->create_sequence(), 1};
  const auto hook = [](const LayerOutput&) -> Status { return {}; };
  const auto captured_step = [&](std::uint64_t hook_key) -> Status {
    const auto step = engine->prepare({&entry, 1}, {.pad_to_tokens = 0, .capture = true});
    if (!step.ok()) return step.status();
    if (Status status = engine->step(*step, engine->input(), hook, hook_key); !status.ok()) return status;
    return engine->commit(*step);
  };
  const auto free_bytes = [&] {
    std::size_t free = 0;
    std::size_t total = 0;
    EXPECT_OK(engine->synchronize());
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    return static_cast<std::int64_t>(free);
  };
  ASSERT_OK(captured_step(0));  // brings what all graphs share
  const std::int64_t before = free_bytes();
  for (std::uint64_t key = 1; key <= kGraphs; ++key) ASSERT_OK(captured_step(key));
  const std::int64_t taken = before - free_bytes();
  EXPECT_EQ(engine->graph_stats().captures, kGraphs + 1);
  const std::int64_t nodes = kGraphs * engine->graph_stats().last_nodes;
  std::printf("[     INFO ] %lld graph nodes took %lld B of device memory, %lld B each\n",
              static_cast<long long>(nodes), static_cast<long long>(taken), static_cast<long long>(taken / nodes));
  EXPECT_LE(taken, nodes * kGraphNodeBytes);
}

}  // namespace
}  // namespace dsv4rt::test
