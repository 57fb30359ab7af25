// Two ranks over NCCL on two GPUs, here two threads of one process.
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
#include "gpu/support/require_gpu.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {

inline constexpr int kRanks = 2;

class TwoRanksGpu : public testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    ASSERT_EQ(cudaGetDeviceCount(&devices), cudaSuccess);
    if (devices >= kRanks) return;
    const Status found{StatusCode::kUnsupported, "this machine has " + std::to_string(devices)};
    if (may_be_left_out(found, kRanks)) GTEST_SKIP() << not_run(kRanks, found.message());
    FAIL() << found.message() << " of the " << required_gpus() << " devices that DSV4RT_REQUIRE_GPU asks for";
  }

  // Every rank in a thread of its own, with its communicator.
  static void on_ranks(double deadline_seconds,
                       const std::function<void(int rank, std::shared_ptr<Communicator> ranks)>& body) {
    const auto id = create_nccl_unique_id();
    ASSERT_OK(id);
    std::array<std::thread, kRanks> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads[static_cast<std::size_t>(rank)] = std::thread([&, rank] {
        ASSERT_EQ(cudaSetDevice(rank), cudaSuccess);
        auto ranks = create_nccl_communicator(
            {.rank = rank, .size = kRanks, .id = *id, .device = rank, .deadline_seconds = deadline_seconds});
        ASSERT_OK(ranks);
        body(rank, std::move(ranks).value());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

}  // namespace dsv4rt::test
