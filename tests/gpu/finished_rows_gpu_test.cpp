// Finished rows between caches, as ranks exchange them: the GPU moves the bytes that it should, and no others.
#include <gtest/gtest.h>

#include "gpu/support/device_step.h"
#include "gpu/support/gpu.h"
#include "unit/backend/finished_rows_fixture.h"

namespace dsv4rt {
namespace {

using namespace dsv4rt::test;

class FinishedRowsGpuTest : public test::GpuTest {
 protected:
  // The call on the GPU, on a copy of `memory`, whose bytes it leaves there.
  static void copy(FinishedMemory& memory, RowDirection direction) {
    const DeviceArray<std::byte> pool(gpu(), memory.pool());
    const DeviceArray<std::byte> packed(gpu(), memory.packed());
    const DeviceArray<std::int32_t> table(gpu(), memory.table());
    const DeviceStep step(gpu(), memory.step().view());
    ASSERT_OK(gpu().ops().copy_finished_rows(direction,
                                             memory.params(step.view(), pool.data(), table.data(), packed.data())));
    memory.pool() = pool.download();
    memory.packed() = packed.download();
  }
};

TEST_F(FinishedRowsGpuTest, ExactlyTheRowsOfEveryFormat) {
  for (const FinishedCase& of : finished_cases()) {
    for (const auto direction : {RowDirection::kFromCache, RowDirection::kToCache}) {
      FinishedMemory memory(of, 3);
      FinishedMemory expected = memory;
      copy(memory, direction);
      expected.copy_rows(direction);
      EXPECT_TRUE(same_bytes(memory.pool(), expected.pool())) << of.name << ", " << static_cast<int>(direction);
      EXPECT_TRUE(same_bytes(memory.packed(), expected.packed())) << of.name << ", " << static_cast<int>(direction);
    }
  }
}

// Out of one cache and into another: the second has the first one's rows, and only these have changed.
TEST_F(FinishedRowsGpuTest, OneCachesRowsReachAnother) {
  for (const FinishedCase& of : finished_cases()) {
    FinishedMemory from(of, 5);
    FinishedMemory to(of, 6);
    FinishedMemory expected = to;
    copy(from, RowDirection::kFromCache);
    to.packed() = from.packed();
    copy(to, RowDirection::kToCache);
    expected.packed() = from.packed();
    expected.copy_rows(RowDirection::kToCache);
    EXPECT_TRUE(same_bytes(to.pool(), expected.pool())) << of.name;
    FinishedMemory again = to;
    copy(again, RowDirection::kFromCache);
    EXPECT_TRUE(same_bytes(again.packed(), from.packed())) << of.name;
  }
}

TEST_F(FinishedRowsGpuTest, RefusalsNameFieldAndValue) {
  FinishedMemory memory(finished_cases().front(), 4);
  FinishedRowsParams params =
      memory.params(memory.step().view(), memory.pool().data(), memory.table().data(), memory.packed().data());
  params.packed_shape.rows = 100;
  EXPECT_TRUE(fails_with(gpu().ops().copy_finished_rows(RowDirection::kFromCache, params), StatusCode::kInvalidArgument,
                         {"copy_finished_rows", "packed_shape.rows = 100"}));
}

}  // namespace
}  // namespace dsv4rt
