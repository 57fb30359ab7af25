// Two ranks over NCCL on two GPUs, here two threads of one process. With DSV4RT_STAND_IN_NCCL both are on one GPU, and
// a stand-in takes NCCL's place (stand_in/): everything but NCCL is as it is.
#pragma once

#include <array>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "dsv4rt/communicator.h"
#if defined(DSV4RT_STAND_IN_NCCL)
#include "gpu/nccl/stand_in/stand_in_nccl.h"
#endif
#include "gpu/support/require_gpu.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

inline constexpr int kRanks = 2;

#if defined(DSV4RT_STAND_IN_NCCL)
inline constexpr int kDevices = 1;
// How bytes go from rank to rank on the device; whoever asks for it waits.
inline void use_device_runtime() {
  StandInNccl& nccl = stand_in_nccl();
  nccl.copy = [](void* to, const void* from, std::size_t bytes) {
    EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  };
  nccl.settle = [](void* stream) { EXPECT_EQ(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), cudaSuccess); };
  nccl.stick = [](void*, bool stuck) { EXPECT_FALSE(stuck) << "calls that do not go together"; };
}
#else
inline constexpr int kDevices = kRanks;
inline void use_device_runtime() {}
#endif
inline int device_of(int rank) {
  return rank % kDevices;
}

class TwoRanksGpu : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    if (devices >= kDevices) return;
    const Status found{StatusCode::kUnsupported, "this machine has " + std::to_string(devices)};
    if (may_be_left_out(found, kDevices)) GTEST_SKIP() << not_run(kDevices, found.message());
    FAIL() << found.message() << " of the " << required_gpus() << " devices that DSV4RT_REQUIRE_GPU asks for";
  }

  // Every rank in a thread of its own, with its communicator.
  static void on_ranks(double deadline_seconds,
                       const std::function<void(int rank, std::shared_ptr<Communicator> ranks)>& body) {
    use_device_runtime();
    const auto id = create_nccl_unique_id();
    ASSERT_OK(id);
    std::array<std::thread, kRanks> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads[static_cast<std::size_t>(rank)] = std::thread([&, rank] {
        ASSERT_EQ(cudaSetDevice(device_of(rank)), cudaSuccess);
        auto ranks = create_nccl_communicator(
            {.rank = rank, .size = kRanks, .id = *id, .device = device_of(rank), .deadline_seconds = deadline_seconds});
        ASSERT_OK(ranks);
        body(rank, std::move(ranks).value());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace dsv4rt::test
