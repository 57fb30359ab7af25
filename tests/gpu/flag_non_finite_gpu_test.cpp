// Outputs that are not finite: the GPU flags what the CPU flags, in captured steps too, and nobody waits for it.
#include <atomic>
#include <cuda_runtime_api.h>
#include <random>
#include <thread>

#include "backend/row_ops.h"
#include "gpu/support/device_step.h"
#include "gpu/support/gpu.h"
#include "support/golden_case.h"
#include "support/test_backend.h"

namespace dsv4rt {
namespace {

using dsv4rt::test::TestStep;
using test::DeviceArray;
using test::DeviceStep;

class FlagNonFiniteGpuTest : public test::GpuTest {};

// Rows of every width and alignment; a bad value first, last, in the middle or nowhere; flags of others stay.
TEST_F(FlagNonFiniteGpuTest, AgreesWithTheCpu) {
  const auto cpu = test::create_cpu_test_backend({.threads = 2, .max_isa = {}, .on_warning = {}}).value();
  const TestStep step({{0, 0, 3}, {2, 5, 1}, {1, 9, 40}, {3, 2, 2}}, 5);
  const DeviceStep device(gpu(), step.view());
  const auto tokens = static_cast<std::size_t>(step.view().counts.tokens);
  std::mt19937 random(5);
  for (const std::int64_t width : {1, 7, 8, 100, 1024, 4096, 7168}) {
    for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
      std::vector<bf16> x(tokens * static_cast<std::size_t>(width) + shift);
      for (bf16& value : x) value.bits = static_cast<std::uint16_t>(random() % 0x7f80U | (random() & 0x8000U));
      // Sequence 1 is one row, sequence 2 has many; padding rows are NaN.
      const auto at = [&](std::size_t token, std::int64_t column) -> bf16& {
        return x[shift + token * static_cast<std::size_t>(width) + static_cast<std::size_t>(column)];
      };
      for (std::size_t token = tokens - 5; token < tokens; ++token) at(token, 0) = {0x7fc0};
      const std::pair<std::size_t, std::int64_t> places[] = {{0, 0}, {2, width - 1}, {3, width / 2}, {30, 0}, {45, 0}};
      for (const auto& [token, column] : places) {
        for (const int bad : {0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xffff, 0x7f7f}) {
          const bf16 before = at(token, column);
          at(token, column) = {static_cast<std::uint16_t>(bad)};
          std::vector<std::int32_t> flags = {0, 7, 0, 0, 5};
          const DeviceArray<std::int32_t> device_flags(gpu(), flags);
          const DeviceArray<bf16> device_x(gpu(), x);
          const auto params = [&](const StepView& view, const bf16* rows, std::int32_t* to) {
            return FlagNonFiniteParams{.step = view, .width = width, .x = rows + shift, .flags = to};
          };
          ASSERT_OK(cpu->ops().flag_non_finite(params(step.view(), x.data(), flags.data())));
          ASSERT_OK(gpu().ops().flag_non_finite(params(device.view(), device_x.data(), device_flags.data())));
          ASSERT_EQ(device_flags.download(), flags) << "width " << width << " shift " << shift << " token " << token;
          at(token, column) = before;
        }
      }
    }
  }
}

// Holds the stream back until it is opened.
struct Gate {
  std::atomic<bool> open{false};
  static void CUDART_CB wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open.load()) std::this_thread::yield();
  }
};

TEST_F(FlagNonFiniteGpuTest, CapturedStepsAreLookedAtAndNobodyWaits) {
  const test::GoldenCase golden = test::GoldenCase::open("tiny-fp8");
  EngineOptions options = golden.options();
  options.backend = "cuda";
  options.check_outputs = true;
  options.limits = {.max_sequences = 2, .max_context_tokens = 256, .max_step_tokens = 16, .pool_tokens = 0};
  const auto engine = test::make_engine(options);
  const SequenceId a = engine->create_sequence().value();
  const SequenceId b = engine->create_sequence().value();
  auto stream = static_cast<cudaStream_t>(engine->stream());
  const auto run = [&](SequenceId first, SequenceId second, std::uint16_t value, Gate* gate = nullptr) {
    const StepEntry entries[] = {{first, 1}, {second, 1}};
    const Step step = engine->prepare(entries, {.pad_to_tokens = 0, .capture = true}).value();
    std::vector<Bf16Bits> x(static_cast<std::size_t>(step.tokens * golden.hidden()), 0x3c00);
    x[static_cast<std::size_t>(golden.hidden())] = value;  // the second entry's
    EXPECT_EQ(cudaMemcpyAsync(engine->input(), x.data(), x.size() * sizeof(Bf16Bits), cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    if (gate != nullptr) {
      EXPECT_EQ(cudaLaunchHostFunc(stream, Gate::wait, gate), cudaSuccess);
    }
    EXPECT_OK(engine->step(step, engine->input(), [](const LayerOutput&) { return Status{}; }));
    EXPECT_OK(engine->commit(step));
    return step;
  };
  const auto entries = [&](const Step& step) {
    EXPECT_OK(engine->synchronize());
    const auto check = engine->output_check(step);
    EXPECT_OK(check);
    EXPECT_TRUE(check->known);
    return check->entries;
  };
  using Entries = std::vector<std::int32_t>;
  EXPECT_EQ(entries(run(a, b, 0x3c00)), Entries{});
  Gate gate;
  const Step bad = run(a, b, 0x7f80, &gate);
  EXPECT_FALSE(engine->output_check(bad).value().known);
  EXPECT_EQ(engine->non_finite_entries(), 0);
  gate.open = true;
  EXPECT_EQ(entries(bad), Entries{1});
  EXPECT_EQ(entries(run(b, a, 0x3c00)), Entries{0});
  EXPECT_EQ(engine->non_finite_entries(), 2);
  EXPECT_EQ(engine->graph_stats().captures, 1);
}

}  // namespace
}  // namespace dsv4rt
