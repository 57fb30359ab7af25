// Engines on two devices of one process, in one thread and in two.
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device/cuda_device.h"
#include "gpu/support/callers_device.h"
#include "gpu/support/device_writes.h"
#include "gpu/support/require_gpu.h"

namespace dsv4rt::test {
namespace {

constexpr int kDevices = 2;

class TwoDevicesGpu : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    if (devices >= kDevices) return;
    const Status found{StatusCode::kUnsupported, "this machine has " + std::to_string(devices)};
    if (may_be_left_out(found, kDevices)) GTEST_SKIP() << not_run(kDevices, found.message());
    FAIL() << found.message() << " of the " << required_gpus() << " devices that DSV4RT_REQUIRE_GPU asks for";
  }
};

TEST_F(TwoDevicesGpu, EveryCallKeepsTheCallersDevice) {
  for (const int callers : {0, 1}) {
    for (const int engines : {0, 1}) {
      SCOPED_TRACE("caller on " + std::to_string(callers) + ", engine on " + std::to_string(engines));
      expect_calls_keep_device(callers, engines);
    }
  }
}

// Devices of one kind compute the same bytes.
TEST_F(TwoDevicesGpu, InterleavedInOneThread) {
  const auto first = make_engine(tiny_engine_options(0));
  const auto second = make_engine(tiny_engine_options(1));
  const EngineRun expected[2] = {RunOfEngine(*first, 1).finish(), RunOfEngine(*first, 2).finish()};
  for (const int current : {0, 1}) {
    ASSERT_EQ(cudaSetDevice(current), cudaSuccess);
    RunOfEngine one(*first, 1);
    RunOfEngine other(*second, 2);
    while (one.more()) one.advance(), other.advance();
    EXPECT_EQ(one.finish(), expected[0]);
    EXPECT_EQ(other.finish(), expected[1]);
  }
}

TEST_F(TwoDevicesGpu, InTwoThreads) {
  const auto first = make_engine(tiny_engine_options(0));
  const auto second = make_engine(tiny_engine_options(1));
  const EngineRun expected[2] = {RunOfEngine(*first, 1).finish(), RunOfEngine(*first, 2).finish()};
  for (int round = 0; round < 3; ++round) {
    EngineRun runs[2];
    std::thread thread([&] { runs[1] = RunOfEngine(*second, 2).finish(); });
    runs[0] = RunOfEngine(*first, 1).finish();
    thread.join();
    EXPECT_EQ(runs[0], expected[0]);
    EXPECT_EQ(runs[1], expected[1]);
  }
}

// The second device's engine is made while the first one's runs, and outlives it.
TEST_F(TwoDevicesGpu, EnginesComeAndGo) {
  auto first = make_engine(tiny_engine_options(0));
  const EngineRun expected = RunOfEngine(*first, 3).finish();
  RunOfEngine run(*first, 4);
  run.advance();
  const auto second = make_engine(tiny_engine_options(1));
  static_cast<void>(run.finish());
  first.reset();
  EXPECT_EQ(RunOfEngine(*second, 3).finish(), expected);
}

// What is known of one device is not taken for the other's.
TEST_F(TwoDevicesGpu, FactsAreOfTheirDevice) {
  for (const int ordinal : {0, 1}) {
    cudaDeviceProp properties{};
    ASSERT_EQ(cudaGetDeviceProperties(&properties, ordinal), cudaSuccess);
    const auto device = cuda::CudaDevice::create(ordinal);
    ASSERT_OK(device);
    EXPECT_EQ((*device)->ordinal(), ordinal);
    EXPECT_EQ((*device)->multiprocessors(), properties.multiProcessorCount);
    EXPECT_EQ(static_cast<std::size_t>((*device)->block_shared_bytes()), properties.sharedMemPerBlockOptin);
  }
}

// Kernels would read them, and the device would be lost.
TEST_F(TwoDevicesGpu, CountsOfTheOtherDeviceAreRefused) {
  for (const int device : {0, 1}) {
    SCOPED_TRACE(device);
    EngineOptions options = tiny_engine_options(device);
    options.draft_budget_tokens = 3;
    const auto engine = make_engine(options);
    const StepEntry entry{engine->create_sequence().value(), 1};
    const auto step = engine->prepare({&entry, 1});
    ASSERT_OK(step);
    const std::vector<Bf16Bits> x(static_cast<std::size_t>(engine->config().hidden_size));
    std::vector<Bf16Bits> out(x.size());
    for (const LayerId layer : engine->layers()) {
      ASSERT_OK(engine->forward_layer_from_host(*step, layer, x.data(), out.data()));
    }
    void* counts[kDevices] = {};
    const std::int32_t accepted = 1;
    for (const int on : {0, 1}) {
      ASSERT_EQ(cudaSetDevice(on), cudaSuccess);
      ASSERT_EQ(cudaMalloc(&counts[on], sizeof accepted), cudaSuccess);
      copy_to_device(counts[on], &accepted, sizeof accepted);
    }
    const Status refused = engine->commit_from_device(*step, {static_cast<std::int32_t*>(counts[1 - device]), 1});
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument) << refused.to_string();
    EXPECT_NE(refused.message().find("not memory of the engine's device"), std::string::npos) << refused.to_string();
    EXPECT_OK(engine->commit_from_device(*step, {static_cast<std::int32_t*>(counts[device]), 1}));
    EXPECT_OK(engine->settle());
    for (void* memory : counts) static_cast<void>(cudaFree(memory));
  }
}

}  // namespace
}  // namespace dsv4rt::test
