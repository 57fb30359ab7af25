// What one device shows of engines that share a process: calls leave the caller's current device, two engines do not
// touch each other, and refused calls leave nothing behind.
#include <chrono>
#include <cuda_runtime_api.h>
#include <thread>

#include <gtest/gtest.h>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/kernel_image.h"
#include "gpu/support/callers_device.h"

namespace dsv4rt::test {
namespace {

TEST(CurrentDeviceGpu, EveryCallKeepsTheCallersDevice) {
  expect_calls_keep_device(0, 0);
}

// Threads that have never used CUDA: the engine's are not the ones that made it.
TEST(CurrentDeviceGpu, EnginesMoveBetweenThreads) {
  const auto engine = make_engine(tiny_engine_options(0));
  const EngineRun expected = RunOfEngine(*engine, 5).finish();
  EngineRun elsewhere;
  std::thread([&] { elsewhere = RunOfEngine(*engine, 5).finish(); }).join();
  EXPECT_EQ(elsewhere, expected);
}

TEST(CurrentDeviceGpu, TwoEnginesInOneThreadAndInTwo) {
  const auto first = make_engine(tiny_engine_options(0));
  const auto second = make_engine(tiny_engine_options(0));
  const EngineRun alone[2] = {RunOfEngine(*first, 1).finish(), RunOfEngine(*second, 2).finish()};
  RunOfEngine one(*first, 1);
  RunOfEngine other(*second, 2);
  while (one.more()) one.advance(), other.advance();
  EXPECT_EQ(one.finish(), alone[0]);
  EXPECT_EQ(other.finish(), alone[1]);
  EngineRun together[2];
  std::thread thread([&] { together[1] = RunOfEngine(*second, 2).finish(); });
  together[0] = RunOfEngine(*first, 1).finish();
  thread.join();
  EXPECT_EQ(together[0], alone[0]);
  EXPECT_EQ(together[1], alone[1]);
}

// One copy of the weights, two streams and two threads; then without the engine that packed them.
TEST(CurrentDeviceGpu, EnginesShareWeights) {
  auto owner = make_engine(tiny_engine_options(0));
  const EngineRun alone[2] = {RunOfEngine(*owner, 1).finish(), RunOfEngine(*owner, 2).finish()};
  const auto sharing = owner->create_sharing(tiny_engine_options(0)).value();
  EngineRun together[2];
  std::thread thread([&] { together[1] = RunOfEngine(*sharing, 2).finish(); });
  together[0] = RunOfEngine(*owner, 1).finish();
  thread.join();
  EXPECT_EQ(together[0], alone[0]);
  EXPECT_EQ(together[1], alone[1]);
  owner.reset();
  EXPECT_EQ(RunOfEngine(*sharing, 1).finish(), alone[0]);
}

// What a caller's stream has to do before is done when an engine is there, and so are the zeros of its memory: input()
// may be written from any other stream.
TEST(CurrentDeviceGpu, NothingIsUnderWayWhenAnEngineIsMade) {
  const auto owner = make_engine(tiny_engine_options(0));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto late = [](void*) { std::this_thread::sleep_for(std::chrono::seconds(1)); };
  EngineOptions options = tiny_engine_options(0);
  options.stream = stream;
  for (const bool shares : {false, true}) {
    ASSERT_EQ(cudaLaunchHostFunc(stream, late, nullptr), cudaSuccess);
    const auto engine = shares ? owner->create_sharing(options) : Engine::create(options);
    ASSERT_OK(engine);
    EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess) << (shares ? "shares weights" : "has weights of its own");
  }
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// The list of architectures as CMake names it holds 90a, and the device is a Hopper: its kernels serve.
TEST(CurrentDeviceGpu, TheProbeKnowsHopper) {
  const auto device = cuda::CudaDevice::create(0);
  ASSERT_OK(device);
  const cuda::DeviceFacts& facts = (*device)->facts();
  const bool hopper = facts.compute_major == 9 && facts.compute_minor == 0;
  const bool built = std::string(cuda::compiled_architectures()).find("90a") != std::string::npos;
  EXPECT_EQ(facts.has_sm90a, hopper && built) << cuda::compiled_architectures();
}

// Otherwise the next launch would report it as its own.
TEST(CurrentDeviceGpu, RefusedCallsLeaveNoLastError) {
  const cudaError_t error = cudaSetDevice(-1);
  ASSERT_NE(error, cudaSuccess);
  const Status status = DSV4RT_CUDA_STATUS(error);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
}

// A caller's slip, not a lost device.
TEST(CurrentDeviceGpu, APointerOfNobodyDoesNotFault) {
  int host = 0;
  const Status status = DSV4RT_CUDA_STATUS(cudaFree(&host));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.message();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace dsv4rt::test
