// Every operation of the CUDA backend runs with the backend's device current, and the caller's is current afterwards.
#include "backend/cuda/device_ops.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "backend/boundary_state.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/row_ops.h"
#include "base/try.h"
#include "support/expect_ok.h"
#include "support/fake_device_driver.h"

namespace dsv4rt::test {
namespace {

// Notes the device that is current in each call.
class WatchingOps final : public RowOps {
 public:
  explicit WatchingOps(const FakeDeviceDriver& driver) : driver_(driver) {}
  std::vector<int> devices;

  Status linear(std::int32_t, std::span<const LinearCall>) override { return note(); }
  Status rms_norm(const RmsNormParams&) override { return note(); }
  Status normed_linear(const RmsNormParams&, std::span<const LinearCall>) override { return note(); }
  Status query(const QueryParams&) override { return note(); }
  Status swa_kv(const SwaKvParams&) override { return note(); }
  Status swa_cache_write(const SwaCacheWriteParams&) override { return note(); }
  Status compress(const CompressParams&) override { return note(); }
  Status state_store(const StateStoreParams&) override { return note(); }
  Status index_query(const IndexQueryParams&) override { return note(); }
  Status write_kv(const WriteKvParams&) override { return note(); }
  Status copy_finished_rows(RowDirection, const FinishedRowsParams&) override { return note(); }
  Status indexer_topk(const IndexerTopkParams&) override { return note(); }
  Status attend(const AttendParams&) override { return note(); }
  [[nodiscard]] bool takes_encoded_rows(std::int32_t tokens, const PackedLinear&) const override { return tokens > 2; }
  Result<bool> encodes_outputs(std::int32_t, std::span<const LinearCall>) override {
    DSV4RT_RETURN_IF_ERROR(note());
    return true;
  }
  Result<bool> norms_queries(const AttendParams&) override {
    DSV4RT_RETURN_IF_ERROR(note());
    return true;
  }
  Status flag_non_finite(const FlagNonFiniteParams&) override { return note(); }
  Status begin_step(const StepView&, std::span<const CacheTable>) override { return note(); }
  Status copy_slot(std::int32_t, std::int32_t, std::span<const CacheTable>, std::span<const CacheRings>) override {
    return note();
  }
  Status copy_boundary_rows(BoundaryDirection, std::span<const BoundaryCopy>, std::span<const BoundaryRows>,
                            const BoundaryStates&) override {
    return note();
  }
  Status keep_boundary_rows(const KeepBoundaryParams&) override { return note(); }
  Status write_table_rows(std::int32_t, const std::int32_t*, std::span<const std::int32_t>,
                          std::span<const CacheTable>) override {
    return note();
  }

 private:
  Status note() {
    devices.push_back(driver_.current);
    return {};
  }
  const FakeDeviceDriver& driver_;
};

const std::vector<std::function<Status(RowOps&)>> kCalls = {
    [](RowOps& ops) { return ops.linear(1, {}); },
    [](RowOps& ops) { return ops.rms_norm({}); },
    [](RowOps& ops) { return ops.normed_linear({}, {}); },
    [](RowOps& ops) { return ops.query({}); },
    [](RowOps& ops) { return ops.swa_kv({}); },
    [](RowOps& ops) { return ops.swa_cache_write({}); },
    [](RowOps& ops) { return ops.compress({}); },
    [](RowOps& ops) { return ops.state_store({}); },
    [](RowOps& ops) { return ops.index_query({}); },
    [](RowOps& ops) { return ops.write_kv({}); },
    [](RowOps& ops) { return ops.copy_finished_rows(RowDirection::kToCache, {}); },
    [](RowOps& ops) { return ops.indexer_topk({}); },
    [](RowOps& ops) { return ops.attend({}); },
    [](RowOps& ops) {
      const Result<bool> norms = ops.norms_queries({});
      return norms.ok() ? Status{} : norms.status();
    },
    [](RowOps& ops) {
      const Result<bool> encodes = ops.encodes_outputs(1, {});
      return encodes.ok() ? Status{} : encodes.status();
    },
    [](RowOps& ops) { return ops.flag_non_finite({}); },
    [](RowOps& ops) { return ops.begin_step({}, {}); },
    [](RowOps& ops) { return ops.copy_slot(0, 1, {}, {}); },
    [](RowOps& ops) { return ops.copy_boundary_rows(BoundaryDirection::kToRings, {}, {}, {}); },
    [](RowOps& ops) { return ops.keep_boundary_rows({}); },
    [](RowOps& ops) { return ops.write_table_rows(0, nullptr, {}, {}); },
};

TEST(DeviceOps, RunOnTheirDeviceAndGiveTheCallersBack) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{}});
  const auto device = cuda::CudaDevice::create(1, driver);
  ASSERT_OK(device);
  WatchingOps watching(driver);
  cuda::DeviceOps ops(**device, watching);
  for (const int callers : {0, 1}) {
    watching.devices.clear();
    driver.current = callers;
    for (const auto& call : kCalls) {
      EXPECT_OK(call(ops));
      EXPECT_EQ(driver.current, callers);
    }
    EXPECT_EQ(watching.devices, std::vector<int>(kCalls.size(), 1));
  }
}

// What needs no device is what the operations say.
TEST(DeviceOps, EncodedRowsAreTheOperations) {
  class Weight final : public PackedLinear {};
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{}});
  const auto device = cuda::CudaDevice::create(1, driver);
  ASSERT_OK(device);
  WatchingOps watching(driver);
  const cuda::DeviceOps ops(**device, watching);
  EXPECT_FALSE(ops.takes_encoded_rows(2, Weight()));
  EXPECT_TRUE(ops.takes_encoded_rows(3, Weight()));
}

// Nothing is enqueued on another device.
TEST(DeviceOps, ADeviceThatCannotBeCurrentRunsNothing) {
  FakeDeviceDriver driver({FakeDevice{}, FakeDevice{}});
  const auto device = cuda::CudaDevice::create(1, driver);
  ASSERT_OK(device);
  driver.device(1).set_error = cudaErrorIllegalAddress;
  WatchingOps watching(driver);
  cuda::DeviceOps ops(**device, watching);
  for (const auto& call : kCalls) EXPECT_EQ(call(ops).code(), StatusCode::kFaulted);
  EXPECT_TRUE(watching.devices.empty());
}

}  // namespace
}  // namespace dsv4rt::test
