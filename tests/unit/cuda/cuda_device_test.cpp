// The device object and the guard of the caller's current device, on devices that a stand-in describes.
#include "backend/cuda/device/cuda_device.h"

#include <gtest/gtest.h>

#include "backend/cuda/device/current_device.h"
#include "support/expect_ok.h"
#include "support/fake_device_driver.h"

namespace dsv4rt::test {
namespace {

using cuda::CudaDevice;
using cuda::CurrentDevice;

// Any addresses: the stand-in runs nothing.
const int kKernels[2] = {};

std::unique_ptr<CudaDevice> make_device(FakeDeviceDriver& driver, int ordinal) {
  auto device = CudaDevice::create(ordinal, driver);
  EXPECT_OK(device);
  return device.ok() ? std::move(device).value() : nullptr;
}

TEST(CudaDevice, HoldsTheFactsOfItsOwnDevice) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{.compute_major = 10,
                                                    .compute_minor = 3,
                                                    .multiprocessors = 148,
                                                    .block_shared_bytes = 1000,
                                                    .sm_shared_bytes = 2000,
                                                    .reserved_shared_bytes = 3,
                                                    .sm90a_code = false}});
  const auto first = make_device(driver, 0);
  const auto second = make_device(driver, 1);
  EXPECT_EQ(first->facts().compute_major, 9);
  EXPECT_EQ(first->multiprocessors(), 132);
  EXPECT_TRUE(first->has_sm90a());
  EXPECT_EQ(second->ordinal(), 1);
  EXPECT_EQ(second->facts().compute_major, 10);
  EXPECT_EQ(second->facts().compute_minor, 3);
  EXPECT_EQ(second->multiprocessors(), 148);
  EXPECT_EQ(second->block_shared_bytes(), 1000);
  EXPECT_EQ(second->facts().sm_shared_bytes, 2000);
  EXPECT_EQ(second->facts().reserved_shared_bytes, 3);
  EXPECT_FALSE(second->has_sm90a());
  EXPECT_EQ(driver.current, 0);
}

// Hopper with a build for 90 alone.
TEST(CudaDevice, HopperWithoutItsCodeHasNone) {
  FakeDeviceDriver driver({FakeDevice{.sm90a_code = false}});
  EXPECT_FALSE(make_device(driver, 0)->has_sm90a());
}

TEST(CudaDevice, CreationReturnsWhatTheDriverFailsWith) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{.set_error = cudaErrorECCUncorrectable}});
  EXPECT_EQ(CudaDevice::create(1, driver).status().code(), StatusCode::kFaulted);
  EXPECT_EQ(CudaDevice::create(2, driver).status().code(), StatusCode::kInvalidArgument);
  driver.device(0).kernel_error = cudaErrorNoKernelImageForDevice;
  EXPECT_EQ(CudaDevice::create(0, driver).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(driver.current, 0);
}

TEST(CudaDevice, PreparesAKernelOnceForEachDevice) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{}});
  const auto first = make_device(driver, 0);
  const auto second = make_device(driver, 1);
  for (int i = 0; i < 3; ++i) EXPECT_OK(first->prepare(&kKernels[0], 100000));
  EXPECT_EQ(driver.allow_calls, 1);
  EXPECT_OK(first->prepare(&kKernels[0], 50000));  // has room for more already
  EXPECT_EQ(driver.allow_calls, 1);
  EXPECT_OK(first->prepare(&kKernels[1], 50000));
  EXPECT_EQ(driver.allow_calls, 2);
  {
    const CurrentDevice current(*second);
    EXPECT_OK(second->prepare(&kKernels[0], 100000));
  }
  EXPECT_EQ(driver.allow_calls, 3);
  EXPECT_EQ((driver.allowed[{1, &kKernels[0]}]), 100000);
  EXPECT_OK(first->prepare(&kKernels[0], 200000));
  EXPECT_EQ((driver.allowed[{0, &kKernels[0]}]), 200000);
}

TEST(CudaDevice, FailedPreparationsAreAskedAgain) {
  FakeDeviceDriver driver({FakeDevice{.allow_error = cudaErrorInvalidValue}});
  const auto device = make_device(driver, 0);
  EXPECT_EQ(device->prepare(&kKernels[0], 100000).code(), StatusCode::kInvalidArgument);
  driver.device(0).allow_error = cudaSuccess;
  EXPECT_OK(device->prepare(&kKernels[0], 100000));
  EXPECT_EQ(driver.allow_calls, 2);
}

TEST(CudaDevice, RefusesMoreSharedMemoryThanABlockMayHave) {
  FakeDeviceDriver driver({FakeDevice{.block_shared_bytes = 101376}});
  const auto device = make_device(driver, 0);
  const Status status = device->prepare(&kKernels[0], 101377);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("101377"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("101376"), std::string::npos) << status.message();
  EXPECT_EQ(driver.allow_calls, 0);
}

TEST(CudaDevice, KeepsClustersOfItsOwnDevice) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{.clusters = [](int blocks) { return 100 / blocks; }}});
  const auto first = make_device(driver, 0);
  const auto second = make_device(driver, 1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(first->clusters_at_once(&kKernels[0], 4, 512, 200000).value(), 30);
    EXPECT_EQ(first->clusters_at_once(&kKernels[0], 8, 512, 200000).value(), 14);
  }
  EXPECT_EQ(driver.cluster_calls, 2);
  const CurrentDevice current(*second);
  EXPECT_EQ(second->clusters_at_once(&kKernels[0], 4, 512, 200000).value(), 25);
}

// A device on which no such cluster fits is no error, and an error is no number.
TEST(CudaDevice, ClustersThatFailAreAskedAgain) {
  FakeDeviceDriver driver({FakeDevice{.clusters_error = cudaErrorInvalidConfiguration}});
  const auto device = make_device(driver, 0);
  EXPECT_EQ(device->clusters_at_once(&kKernels[0], 4, 512, 1000).status().code(), StatusCode::kInternal);
  driver.device(0).clusters_error = cudaSuccess;
  EXPECT_EQ(device->clusters_at_once(&kKernels[0], 4, 512, 1000).value(), 30);
  EXPECT_EQ(device->clusters_at_once(&kKernels[0], 16, 512, 1000).value(), 0);
  EXPECT_EQ(device->clusters_at_once(&kKernels[0], 16, 512, 1000).value(), 0);
  EXPECT_EQ(driver.cluster_calls, 3);
}

TEST(CudaDevice, RemembersMoreKernelsThanItHasRoomFor) {
  FakeDeviceDriver driver({FakeDevice{}});
  const auto device = make_device(driver, 0);
  std::vector<char> kernels(1000);
  for (int round = 0; round < 2; ++round) {
    for (const char& kernel : kernels) {
      EXPECT_OK(device->prepare(&kernel, 5));
      EXPECT_EQ(device->clusters_at_once(&kernel, 2, 32, 5).value(), 66);
    }
  }
  EXPECT_EQ(driver.allowed.size(), 1000U);
}

TEST(CurrentDevice, GivesTheCallersDeviceBack) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{}, FakeDevice{}});
  const auto device = make_device(driver, 1);
  driver.current = 2;
  {
    const CurrentDevice outer(*device);
    EXPECT_OK(outer.status());
    EXPECT_EQ(driver.current, 1);
    const CurrentDevice inner(0, driver);
    EXPECT_EQ(driver.current, 0);
  }
  EXPECT_EQ(driver.current, 2);
}

TEST(CurrentDevice, OfTheCallerNeedsNoChange) {
  FakeDeviceDriver driver({FakeDevice{}});
  const auto device = make_device(driver, 0);
  driver.sets = 0;
  { const CurrentDevice current(*device); }
  EXPECT_EQ(driver.sets, 0);
}

TEST(CurrentDevice, FailuresAreAStatusAndChangeNothing) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{}});
  const auto device = make_device(driver, 1);
  driver.device(1).set_error = cudaErrorDevicesUnavailable;
  const auto call = [&]() -> Status {
    DSV4RT_ON_DEVICE(*device);
    return {};
  };
  const Status status = call();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("current_device.cpp"), std::string::npos) << status.message();
  EXPECT_EQ(driver.current, 0);
  driver.device(1).set_error = cudaSuccess;
  driver.get_error = cudaErrorIllegalAddress;
  EXPECT_EQ(call().code(), StatusCode::kFaulted);
}

}  // namespace
}  // namespace dsv4rt::test
