// The communicator over NCCL as far as one GPU shows it: loading, meeting, sums eager and captured, the watch, the end.
#include <algorithm>
#include <chrono>
#include <cuda_runtime_api.h>
#include <future>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/device/captured_graph.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/current_device.h"
#include "backend/cuda/kernels/cache_moves/copy_regions.h"
#include "backend/cuda/nccl/deadline_watch.h"
#include "backend/cuda/nccl/sum_ranks.h"
#include "base/bfloat16.h"
#include "dist/sum_in_rank_order.h"
#include "dsv4rt/communicator.h"
#include "gpu/support/device_writes.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

using Clock = std::chrono::steady_clock;

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    copy_to_device(data_, values.data(), values.size() * sizeof(T));
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

 private:
  std::size_t count_;
  T* data_ = nullptr;
};

std::vector<float> terms(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>((i * 2654435761U) % 100003) / 997.0F - 50.0F;
  return values;
}

// The device adds as the host does, bit for bit.
TEST(NcclGpu, SumsOfRanksAreTheHosts) {
  constexpr std::int32_t kRanks = 5;
  constexpr std::int64_t kElements = 70001;
  const auto values = terms(kRanks * kElements);
  const DeviceArray<float> on_device(values);
  const DeviceArray<bf16> sum(kElements);
  ASSERT_OK(cuda::launch_sum_ranks(on_device.data(), kRanks, ElementType::kF32, sum.data(), ElementType::kBf16,
                                   kElements, nullptr));
  const auto got = sum.read();
  std::vector<bf16> expected(kElements);
  sum_in_rank_order(reinterpret_cast<const std::byte*>(values.data()), kElements * sizeof(float), kRanks,
                    ElementType::kF32, expected.data(), ElementType::kBf16, kElements);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(got[i].bits, expected[i].bits) << i;
}

// Runs at every alignment and of many lengths, more than one launch takes: each arrives, and nothing around it changes.
TEST(NcclGpu, CopiesManyShortRuns) {
  constexpr std::size_t kRuns = 301;
  constexpr std::size_t kRoom = 70000;
  std::vector<unsigned char> given(kRuns * kRoom);
  for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<unsigned char>((i * 2654435761U) >> 24U);
  const DeviceArray<unsigned char> from(given);
  const DeviceArray<unsigned char> to(std::vector<unsigned char>(given.size(), 7));
  std::vector<unsigned char> expected(given.size(), 7);
  std::vector<cuda::CopyRegion> copies;
  for (std::size_t run = 0; run < kRuns; ++run) {
    const std::size_t bytes = run % 60 == 0 ? 65536 : run * run % 4099;
    const std::size_t from_at = run * kRoom + (run % 3 == 0 ? 16 : run % 17);
    const std::size_t to_at = run * kRoom + (run % 3 == 0 ? 32 : run % 5);
    copies.push_back({.to = reinterpret_cast<std::byte*>(to.data()) + to_at,
                      .from = reinterpret_cast<const std::byte*>(from.data()) + from_at,
                      .bytes = static_cast<std::int64_t>(bytes)});
    std::copy_n(given.begin() + static_cast<std::ptrdiff_t>(from_at), bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(to_at));
  }
  ASSERT_OK(cuda::copy_regions(copies, nullptr));
  ASSERT_OK(cuda::copy_regions({}, nullptr));
  EXPECT_TRUE(to.read() == expected);
}

Result<std::shared_ptr<Communicator>> rank_alone() {
  DSV4RT_ASSIGN_OR_RETURN(const NcclUniqueId id, create_nccl_unique_id());
  return create_nccl_communicator({.rank = 0, .size = 1, .id = id, .device = 0, .deadline_seconds = 20});
}

TEST(NcclGpu, ARankAloneAddsGathersAndEnds) {
  const auto made = rank_alone();
  ASSERT_OK(made);
  Communicator& alone = **made;
  EXPECT_EQ(alone.transport(), "nccl");
  EXPECT_FALSE(alone.uses_host_memory());
  const int greeting = 42;
  int heard = 0;
  ASSERT_OK(alone.all_gather_host(&greeting, &heard, sizeof(heard), 20));
  EXPECT_EQ(heard, 42);

  constexpr std::int64_t kElements = (std::int64_t{4} << 20) + 1000;  // two parts
  const auto values = terms(kElements);
  const DeviceArray<float> on_device(values);
  const DeviceArray<bf16> sum(kElements);
  const auto add = [&](cudaStream_t stream) {
    return alone.all_reduce_sum(on_device.data(), ElementType::kF32, sum.data(), ElementType::kBf16, kElements, stream);
  };
  EXPECT_EQ(add(nullptr).code(), StatusCode::kFailedPrecondition) << "nothing is reserved yet";
  ASSERT_OK(alone.reserve(kElements));
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_OK(cuda::begin_graph_capture(stream));
  const Status recorded = add(stream);
  auto graph = cuda::end_graph_capture(stream);
  ASSERT_OK(recorded);
  ASSERT_OK(graph);
  for (const bool captured : {false, true}) {
    fill_on_device(sum.data(), 0, kElements * sizeof(bf16));
    if (captured) {
      ASSERT_EQ(cudaGraphLaunch(static_cast<const cuda::CapturedGraph&>(**graph).exec(), stream), cudaSuccess);
    } else {
      ASSERT_OK(add(stream));
    }
    ASSERT_OK(alone.watch(stream));
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const auto got = sum.read();
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i].bits == to_bf16(values[i]).bits ? 0 : 1;
    EXPECT_EQ(wrong, 0) << (captured ? "captured" : "eager");
  }
  EXPECT_OK(alone.state());
  static_cast<void>(cudaStreamDestroy(stream));
}

// As far as a rank alone shows it: NCCL takes all parts in a group, the streams go on, parts stay as they are, and what
// is no share is refused.
TEST(NcclGpu, ARankAloneSharesWithItself) {
  const auto made = rank_alone();
  ASSERT_OK(made);
  Communicator& alone = **made;
  const auto values = terms(5000);
  const DeviceArray<float> on_device(values);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  std::vector<SharedPart> parts;
  for (std::int64_t i = 0; i < 100; ++i)
    parts.push_back({.data = on_device.data() + 41 * i, .bytes = 4 * i, .root = 0});
  for (const std::span<const SharedPart> given : {std::span<const SharedPart>(parts), std::span<const SharedPart>()}) {
    ASSERT_OK(alone.begin_share(given, {}, stream));
    EXPECT_EQ(alone.begin_share(given, {}, stream).code(), StatusCode::kFailedPrecondition);
    ASSERT_OK(alone.end_share(stream));
    ASSERT_OK(alone.end_share(stream)) << "nothing is under way";
    ASSERT_OK(alone.watch(stream));
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_TRUE(on_device.read() == values);
  }
  parts[3].root = 1;
  const Status refused = alone.begin_share(parts, {}, stream);
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("begin_share: root = 1; accepted: 0 to 0"), std::string::npos) << refused.message();
  EXPECT_OK(alone.state());
  static_cast<void>(cudaStreamDestroy(stream));
}

// The only other rank never comes.
TEST(NcclGpu, MeetingNobodyEndsAtTheDeadline) {
  const auto id = create_nccl_unique_id();
  ASSERT_OK(id);
  const auto begin = Clock::now();
  const auto made = create_nccl_communicator({.rank = 0, .size = 2, .id = *id, .device = 0, .deadline_seconds = 1});
  EXPECT_EQ(made.status().code(), StatusCode::kBackendLost) << made.status().message();
  EXPECT_LE(std::chrono::duration<double>(Clock::now() - begin).count(), 3.0);  // NCCL's first start included
  const auto anew = create_nccl_unique_id();
  ASSERT_OK(anew);
  EXPECT_OK(create_nccl_communicator({.rank = 0, .size = 1, .id = *anew, .device = 0, .deadline_seconds = 20}));
}

TEST(NcclGpu, RefusesRanksAndDevicesThatAreNot) {
  const auto refused = [](NcclOptions options, const char* text) {
    const Status status = create_nccl_communicator(options).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  refused({.rank = 2, .size = 2, .id = {}, .device = 0}, "rank 2 of 2");
  refused({.rank = 0, .size = 0, .id = {}, .device = 0}, "rank 0 of 0");
  refused({.rank = 0, .size = 1, .id = {}, .device = 99}, "device 99");
  refused({.rank = 0, .size = 1, .id = {}, .device = 0, .deadline_seconds = 0}, "deadline_seconds");
}

// Work that does not end is given up once, at the deadline; work that does is not.
TEST(NcclGpu, TheWatchGivesUpWorkThatStays) {
  const auto device = cuda::CudaDevice::create(0);
  ASSERT_OK(device);
  const cuda::CurrentDevice current(**device);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto hold = [](void* seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(*static_cast<double*>(seconds)));
  };
  for (double held : {0.05, 1.2}) {
    std::promise<std::string> given_up;
    std::future<std::string> why = given_up.get_future();
    {
      cuda::DeadlineWatch watch(
          **device, 0.4, [] { return std::string(); }, [&](std::string text) { given_up.set_value(std::move(text)); });
      for (int i = 0; i < 100; ++i) ASSERT_OK(watch.mark(stream));
      ASSERT_EQ(cudaLaunchHostFunc(stream, hold, &held), cudaSuccess);
      const auto begin = Clock::now();
      ASSERT_OK(watch.mark(stream));
      const bool told = why.wait_for(std::chrono::milliseconds(900)) == std::future_status::ready;
      EXPECT_EQ(told, held > 0.4);
      if (told) {
        EXPECT_GE(std::chrono::duration<double>(Clock::now() - begin).count(), 0.4);
        EXPECT_NE(why.get().find("did not end within 0.4"), std::string::npos);
      }
    }
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }
  static_cast<void>(cudaStreamDestroy(stream));
}

}  // namespace
}  // namespace dsv4rt::test
