// The host's memory belongs to the caller again when an upload returns, even where the device reads it by itself.
#include <algorithm>
#include <chrono>
#include <cuda_runtime_api.h>
#include <span>
#include <thread>
#include <vector>

#include "gpu/support/gpu.h"

namespace dsv4rt::test {
namespace {

constexpr std::size_t kBytes = 4096;

// Page-locked: a copy of it is made when its turn comes in the stream, not when it is asked for.
class PageLocked {
 public:
  PageLocked() { EXPECT_EQ(cudaMallocHost(&memory_, kBytes), cudaSuccess); }
  ~PageLocked() { EXPECT_EQ(cudaFreeHost(memory_), cudaSuccess); }
  PageLocked(const PageLocked&) = delete;
  PageLocked& operator=(const PageLocked&) = delete;
  [[nodiscard]] std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), kBytes}; }

 private:
  void* memory_ = nullptr;
};

class UploadsGpuTest : public GpuTest {
 protected:
  // What the device has in the end of bytes that are overwritten as soon as `upload` returns.
  template <class Upload>
  static void expect_first_bytes(const Upload& upload) {
    const PageLocked host;
    const DeviceArray<std::byte> device(gpu(), std::vector<std::byte>(kBytes));
    std::ranges::fill(host.bytes(), std::byte{1});
    const auto late = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
    ASSERT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(gpu().native_stream()), late, nullptr), cudaSuccess);
    ASSERT_OK(upload(device.data(), host.bytes()));
    std::ranges::fill(host.bytes(), std::byte{2});
    EXPECT_EQ(device.download(), std::vector<std::byte>(kBytes, std::byte{1}));
  }
};

TEST_F(UploadsGpuTest, TheSourceMayBeReusedOnReturn) {
  expect_first_bytes(
      [](std::byte* to, std::span<const std::byte> from) { return gpu().upload(to, from.data(), from.size()); });
}

// Uploads of steps do not wait for what is under way, until kStepUploads of them are still to run.
TEST_F(UploadsGpuTest, TheSourceOfAStepMayBeReusedWithoutWaiting) {
  ASSERT_OK(gpu().reserve_step_upload(kBytes));
  expect_first_bytes([](std::byte* to, std::span<const std::byte> from) {
    Status uploaded = gpu().upload_step(to, from.data(), from.size());
    EXPECT_EQ(cudaStreamQuery(static_cast<cudaStream_t>(gpu().native_stream())), cudaErrorNotReady);
    return uploaded;
  });
}

}  // namespace
}  // namespace dsv4rt::test
