// Accepted counts that the device has not got yet when the next step is prepared and run, eagerly and as a graph: the
// bytes are those of steps whose counts the host knew, and nothing has waited.
#include <array>
#include <atomic>
#include <chrono>
#include <cuda_runtime_api.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/support/device_writes.h"
#include "gpu/support/gpu.h"
#include "gpu/support/step_recorder.h"
#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kDrafts = 3;
constexpr std::int32_t kSequences = 3;
constexpr std::int32_t kMaxTokens = kSequences * (kDrafts + 1);
constexpr int kSteps = 60;
// Kernels and graphs of every shape are loaded by then: loading may wait for the device, which waits for the test.
constexpr int kFirstHeldBack = 30;

// Holds the stream back until the host lets it go on, for ten seconds at most.
struct Gate {
  std::atomic<bool> open{false};
  std::atomic<bool> timed_out{false};

  static void wait(void* data) {
    auto& gate = *static_cast<Gate*>(data);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!gate.open.load()) {
      if (std::chrono::steady_clock::now() > end) {
        gate.timed_out = true;
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
};

struct PlannedStep {
  std::vector<std::int32_t> members;  // numbers of the sequences, one of each entry
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> accepted;
  std::vector<Bf16Bits> x;
};

std::vector<PlannedStep> plan_steps(std::int64_t hidden) {
  std::mt19937 random(7);
  const auto pick = [&](std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random);
  };
  std::normal_distribution<float> normal;
  std::vector<PlannedStep> steps(kSteps);
  for (PlannedStep& step : steps) {
    std::array<std::int32_t, kSequences> order{0, 1, 2};
    std::shuffle(order.begin(), order.end(), random);
    std::int32_t rows = 0;
    for (std::int32_t i = 0, members = pick(1, kSequences); i < members; ++i) {
      step.members.push_back(order[static_cast<std::size_t>(i)]);
      step.tokens.push_back(pick(1, kDrafts + 1));
      step.accepted.push_back(pick(0, step.tokens.back()));
      rows += step.tokens.back();
    }
    step.x.resize(static_cast<std::size_t>(rows * hidden));
    for (Bf16Bits& value : step.x) value = to_bf16(normal(random)).bits;
  }
  return steps;
}

// Device memory as long as the test.
template <class T>
T* device_memory(std::vector<void*>& taken, std::size_t count) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, count * sizeof(T)), cudaSuccess);
  taken.push_back(memory);
  return static_cast<T*>(memory);
}

class AcceptedCountsGpuTest : public GpuTest, public ::testing::WithParamInterface<bool> {};
class AcceptedCountsErrorGpuTest : public GpuTest {};

TEST_P(AcceptedCountsGpuTest, StepsRunOnWhileTheirCountsAreUnknown) {
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  EngineOptions options = golden.options();
  options.backend = "cuda";
  options.draft_budget_tokens = kDrafts;
  options.limits = {
      .max_sequences = kSequences, .max_context_tokens = 300, .max_step_tokens = kMaxTokens, .pool_tokens = 0};
  const auto hidden = golden.hidden();
  const std::vector<PlannedStep> steps = plan_steps(hidden);

  // With counts that the host knows.
  StepRecorder plain(options, false, kMaxTokens);
  std::vector<SequenceId> of_plain;
  for (int i = 0; i < kSequences; ++i) of_plain.push_back(plain.engine().create_sequence().value());
  std::vector<std::vector<Bf16Bits>> wanted;
  for (const PlannedStep& planned : steps) {
    std::vector<StepEntry> entries;
    for (std::size_t i = 0; i < planned.members.size(); ++i) {
      entries.push_back({of_plain[static_cast<std::size_t>(planned.members[i])], planned.tokens[i]});
    }
    wanted.push_back(plain.run(entries, planned.x, planned.accepted));
  }

  const auto engine = make_engine(options);
  auto* stream = static_cast<cudaStream_t>(engine->stream());
  std::vector<SequenceId> sequences;
  for (int i = 0; i < kSequences; ++i) sequences.push_back(engine->create_sequence().value());
  const std::size_t layers = engine->layers().size();
  const auto row = static_cast<std::size_t>(hidden);
  const std::size_t layer_values = kMaxTokens * row;
  std::vector<void*> taken;
  auto* x = device_memory<Bf16Bits>(taken, layer_values);
  auto* all_x = device_memory<Bf16Bits>(taken, kSteps * layer_values);
  auto* record = device_memory<Bf16Bits>(taken, layers * layer_values);
  auto* log = device_memory<Bf16Bits>(taken, kSteps * layers * layer_values);
  auto* known_counts = device_memory<std::int32_t>(taken, kSteps * kSequences);
  auto* counts = device_memory<std::int32_t>(taken, kSequences);  // written by every step anew, as a sampler does
  for (std::size_t n = 0; n < kSteps; ++n) {
    const PlannedStep& planned = steps[n];
    copy_to_device(all_x + n * layer_values, planned.x.data(), planned.x.size() * sizeof(Bf16Bits));
    copy_to_device(known_counts + n * kSequences, planned.accepted.data(),
                   planned.accepted.size() * sizeof(std::int32_t));
  }
  std::int32_t rows = 0;
  const auto hook = [&](const LayerOutput& output) -> Status {
    const auto local = static_cast<std::size_t>(output.layer.value - engine->layers().front().value);
    const std::size_t bytes = static_cast<std::size_t>(rows) * row * sizeof(Bf16Bits);
    auto* on = static_cast<cudaStream_t>(output.stream);
    EXPECT_EQ(cudaMemcpyAsync(record + local * layer_values, output.output, bytes, cudaMemcpyDeviceToDevice, on),
              cudaSuccess);
    if (output.next_input != nullptr) {
      EXPECT_EQ(cudaMemcpyAsync(output.next_input, x, bytes, cudaMemcpyDeviceToDevice, on), cudaSuccess);
    }
    return {};
  };

  std::array<Gate, kSteps> gates;
  for (std::size_t n = 0; n < kSteps; ++n) {
    SCOPED_TRACE(n);
    const PlannedStep& planned = steps[n];
    std::vector<StepEntry> entries;
    for (std::size_t i = 0; i < planned.members.size(); ++i) {
      entries.push_back({sequences[static_cast<std::size_t>(planned.members[i])], planned.tokens[i]});
    }
    const auto step = engine->prepare(entries, {.pad_to_tokens = kMaxTokens, .capture = GetParam()});
    ASSERT_OK(step);
    rows = step->tokens;
    ASSERT_LE(rows, kMaxTokens);
    ASSERT_EQ(
        cudaMemcpyAsync(x, all_x + n * layer_values, layer_values * sizeof(Bf16Bits), cudaMemcpyDeviceToDevice, stream),
        cudaSuccess);
    ASSERT_OK(engine->step(*step, x, hook));
    ASSERT_EQ(cudaMemcpyAsync(log + n * layers * layer_values, record, layers * layer_values * sizeof(Bf16Bits),
                              cudaMemcpyDeviceToDevice, stream),
              cudaSuccess);
    if (n >= kFirstHeldBack) {
      ASSERT_EQ(cudaLaunchHostFunc(stream, Gate::wait, &gates[n]), cudaSuccess);
    }
    ASSERT_EQ(cudaMemcpyAsync(counts, known_counts + n * kSequences, kSequences * sizeof(std::int32_t),
                              cudaMemcpyDeviceToDevice, stream),
              cudaSuccess);
    if (n > 0) gates[n - 1].open = true;  // what this commit waits for
    ASSERT_OK(engine->commit_from_device(*step, {counts, planned.members.size()}));
    const auto accepted = engine->accepted_counts(*step);
    ASSERT_OK(accepted);
    if (n >= kFirstHeldBack) {
      EXPECT_FALSE(accepted->known) << "the stream is held back in front of them";
    }
  }
  gates.back().open = true;
  ASSERT_OK(engine->settle());
  ASSERT_OK(engine->synchronize());
  for (const Gate& gate : gates) EXPECT_FALSE(gate.timed_out) << "a call has waited for the device";
  if (GetParam()) {
    EXPECT_GT(engine->graph_stats().replays, kSteps / 2);
  }

  for (std::size_t n = 0; n < kSteps; ++n) {
    const std::size_t values = steps[n].x.size();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      std::vector<Bf16Bits> found(values);
      ASSERT_EQ(cudaMemcpy(found.data(), log + (n * layers + layer) * layer_values, values * sizeof(Bf16Bits),
                           cudaMemcpyDeviceToHost),
                cudaSuccess);
      const auto first = wanted[n].begin() + static_cast<std::ptrdiff_t>(layer * values);
      ASSERT_TRUE(std::equal(found.begin(), found.end(), first)) << "step " << n << ", layer " << layer;
    }
  }
  for (std::size_t i = 0; i < kSequences; ++i) {
    EXPECT_EQ(engine->length(sequences[i]).value(), plain.engine().length(of_plain[i]).value());
    Sha256 digest;
    for (const LayerId layer : engine->layers()) {
      EXPECT_OK(EngineInspector(*engine).digest_cache(layer, sequences[i], digest));
    }
    EXPECT_EQ(digest.hex(), plain.digest(of_plain[i])) << i;
  }
  for (void* memory : taken) static_cast<void>(cudaFree(memory));
}

TEST_F(AcceptedCountsErrorGpuTest, CountsOfTheHostAreRefused) {
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  EngineOptions options = golden.options();
  options.backend = "cuda";
  options.draft_budget_tokens = kDrafts;
  const auto engine = make_engine(options);
  const StepEntry entry{engine->create_sequence().value(), 1};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  const std::vector<Bf16Bits> x(static_cast<std::size_t>(golden.hidden()));
  std::vector<Bf16Bits> out(x.size());
  for (const LayerId layer : engine->layers()) {
    ASSERT_OK(engine->forward_layer_from_host(*step, layer, x.data(), out.data()));
  }
  const std::int32_t accepted = 1;
  const Status refused = engine->commit_from_device(*step, {&accepted, 1});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("not memory of the engine's device"), std::string::npos) << refused.to_string();
  EXPECT_OK(engine->commit(*step));
}

INSTANTIATE_TEST_SUITE_P(EagerAndCaptured, AcceptedCountsGpuTest, ::testing::Bool());

}  // namespace
}  // namespace dsv4rt::test
