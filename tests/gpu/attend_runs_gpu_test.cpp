// Attention of runs of tokens on the GPU: the bytes of the kernel that takes tokens one by one, whatever the cut.
#include <algorithm>
#include <vector>

#include "attention/context_split.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/attend/plan.h"
#include "backend/cuda/kernels/attend/run_launch.h"
#include "backend/cuda/kernels/attend/warpgroup_launch.h"
#include "gpu/support/gpu.h"
#include "support/attend_case.h"

namespace dsv4rt::test {
namespace {

class AttendRunsGpuTest : public GpuTest {
 protected:
  using Setup = AttendSetup;

  static void expect_same(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding = 0,
                          void (*spoil)(AttendInputs&) = nullptr) {
    AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
    if (spoil != nullptr) spoil(inputs);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
    expect_same_rows(setup, arrays, {0, inputs.counts.tokens});
  }

  // As a rank attends that has the rows from every 16th on: pieces of the step, whose sequences are the whole step's.
  static void expect_same_pieces(const Setup& setup, const std::vector<AttendPart>& parts, std::int32_t padding) {
    const AttendInputs inputs(setup.shape, setup.bank, setup.slots, parts, padding);
    const DeviceArray<std::byte> blocks(gpu(), setup.pool.bytes);
    const DeviceArray<std::int32_t> table(gpu(), setup.pool.table);
    const AttendArrays arrays(gpu(), inputs, setup.pool, blocks.data(), table.data());
    for (std::int32_t first = 16; first < inputs.counts.tokens; first += 16) {
      SCOPED_TRACE(testing::Message() << "rows from " << first);
      expect_same_rows(setup, arrays, {first, inputs.counts.tokens - first});
      if (HasFailure()) return;
    }
  }

 private:
  static void expect_same_rows(const Setup& setup, const AttendArrays& arrays, RowRange rows) {
    const auto device = cuda::CudaDevice::create(0);
    ASSERT_OK(device);
    AttendParams params = arrays.params;
    const std::int64_t row_values = std::int64_t{setup.shape.heads} * kHeadDim;
    params.step = rows_of_step(params.step, rows);
    params.q += rows.first * row_values;
    params.o += rows.first * row_values;
    std::vector<bf16> single;
    std::vector<bf16> runs;
    const auto alone = cuda::plan_warpgroup(**device, params, 640);
    ASSERT_OK(alone);
    const auto poison_outputs = [&] {
      const std::vector<bf16> poison(static_cast<std::size_t>(rows.count * row_values), bf16{0x7fc0});
      ASSERT_OK(gpu().upload(params.o, poison.data(), poison.size() * sizeof(bf16)));
    };
    poison_outputs();
    ASSERT_OK(cuda::launch_warpgroup(**device, params, *alone, nullptr));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_OK(arrays.output(single));
    for (const std::int32_t blocks : {132, 3}) {
      cuda::RunPlan plan{.block_tokens = (rows.count + blocks - 1) / blocks, .groups = setup.shape.heads / 64};
      plan.blocks = std::int64_t{(rows.count + plan.block_tokens - 1) / plan.block_tokens} * plan.groups;
      poison_outputs();
      ASSERT_OK(cuda::launch_runs(**device, params, plan, nullptr));
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_OK(arrays.output(runs));
      std::size_t differ = 0;
      std::size_t first = 0;
      for (std::size_t i = 0; i < single.size(); ++i) {
        if (single[i].bits != runs[i].bits && differ++ == 0) first = i;
      }
      const auto heads = static_cast<std::size_t>(setup.shape.heads);
      ASSERT_EQ(differ, 0U) << "of " << single.size() << " on " << blocks << " blocks, first: value "
                            << first % kHeadDim << " of head " << first / kHeadDim % heads << " of token "
                            << first / kHeadDim / heads << ": " << to_float(runs[first]) << " for "
                            << to_float(single[first]);
    }
  }
};

// So little work that tools can follow every access.
TEST_F(AttendRunsGpuTest, OneRunOfTokens) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    const Setup setup({.heads = 64, .ratio = ratio}, 2, 400);
    expect_same(setup, {{0, 250, 7}, {1, 126, 3}}, 2);
  }
}

TEST_F(AttendRunsGpuTest, EveryCutGivesTheSameBytes) {
  for (const std::int32_t ratio : {0, 128}) {
    const Setup setup({.heads = 64, .ratio = ratio}, 1, 8200);
    for (const std::int32_t start :
         {0, 1, 2, 3, 63, 64, 100, 126, 127, 128, 129, 130, 131, 191, 255, 256, 1000, 7890}) {
      for (const std::int32_t count : {1, 2, 3, 7, 16, 63, 64, 65, 131, 132, 133, 264, 300}) {
        SCOPED_TRACE(testing::Message() << "ratio " << ratio << " start " << start << " count " << count);
        expect_same(setup, {{0, start, count}});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(AttendRunsGpuTest, SeveralSequencesAndHeads) {
  for (const std::int32_t ratio : {0, 128}) {
    for (const std::int32_t heads : {64, 128}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << " heads " << heads);
      const Setup setup({.heads = heads, .ratio = ratio}, 5, 3000);
      expect_same(setup, {{1, 5, 40}, {0, 2400, 200}, {2, 900, 41}, {3, 0, 7}, {4, 2999, 1}}, 11);
    }
  }
}

TEST_F(AttendRunsGpuTest, FarFromTheWindow) {
  for (const std::int32_t exponent : {4, 6, -6}) {
    SCOPED_TRACE(exponent);
    const Setup setup({.heads = 64, .ratio = 128, .compressed_exponent = exponent}, 5, 8192);
    expect_same(setup, {{1, 126, 40}, {0, 7900, 200}, {2, 900, 41}, {3, 0, 7}, {4, 8190, 1}}, 11);
  }
}

// Sequences end, and padding begins, at rows of a piece that are not those of the step.
TEST_F(AttendRunsGpuTest, PiecesOfAStep) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    const Setup setup({.heads = 64, .ratio = ratio}, 3, 3000);
    expect_same_pieces(setup, {{0, 2400, 101}, {1, 0, 90}, {2, 900, 75}}, 21);
  }
}

TEST_F(AttendRunsGpuTest, LongPrefill) {
  for (const std::int32_t ratio : {0, 128}) {
    SCOPED_TRACE(ratio);
    expect_same(Setup({.heads = 64, .ratio = ratio}, 1, 8192), {{0, 0, 8192}});
  }
}

// Rows that are no numbers: tokens before them must not see them.
TEST_F(AttendRunsGpuTest, RowsThatAreNoNumbers) {
  for (const std::int32_t ratio : {0, 128}) {
    for (const std::int32_t start : {0, 1000}) {
      SCOPED_TRACE(testing::Message() << "ratio " << ratio << " start " << start);
      const Setup setup({.heads = 64, .ratio = ratio}, 1, 3000);
      expect_same(setup, {{0, start, 300}}, 0, [](AttendInputs& in) {
        std::byte* rows = in.staged.data();
        rows[in.staged_shape.data_offset(70) + 13] = std::byte{0x7f};
        rows[in.staged_shape.data_offset(80) + 448 + 9] = std::byte{0x7f};
        rows[in.staged_shape.data_offset(80) + 448 + 8] = std::byte{0x80};
        rows[in.staged_shape.scale_offset(150) + 2] = std::byte{0xff};
      });
    }
  }
}

// Outputs that are zero have the sign that they have there.
TEST_F(AttendRunsGpuTest, NegativeZeros) {
  for (const std::int32_t ratio : {0, 128}) {
    const Setup setup({.heads = 64, .ratio = ratio}, 1, 3000);
    expect_same(setup, {{0, 0, 140}}, 0, [](AttendInputs& in) {
      for (std::int32_t t = 0; t < in.counts.valid_tokens; ++t) {
        std::byte* row = in.staged.data() + in.staged_shape.data_offset(t);
        for (int i = 32; i < 80; ++i) row[i] = std::byte{0x80};
      }
    });
  }
}

TEST_F(AttendRunsGpuTest, GreatScales) {
  const Setup setup({.heads = 64, .ratio = 128}, 1, 3000);
  expect_same(setup, {{0, 1000, 150}}, 0, [](AttendInputs& in) {
    std::byte* rows = in.staged.data();
    rows[in.staged_shape.scale_offset(20) + 3] = std::byte{140};
    rows[in.staged_shape.scale_offset(90) + 6] = std::byte{136};
  });
}

}  // namespace
}  // namespace dsv4rt::test
