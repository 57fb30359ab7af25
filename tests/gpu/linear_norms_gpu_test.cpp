// RMS norms on the GPU, alone and in front of linear layers.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/row_ops.h"
#include "gpu/support/gpu.h"
#include "gpu/support/linear_calls.h"
#include "support/expect_ok.h"
#include "support/test_backend.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

class NormedLinearGpuTest : public GpuTest {
 protected:
  static constexpr std::uint16_t kPoisonBits = 0x7eef;
  void SetUp() override {
    GpuTest::SetUp();
    if (!IsSkipped()) {
      EXPECT_OK(gpu().reserve_scratch(std::size_t{64} << 20));
    }
  }
};

// Rows of any width and place, also those that wide accesses cannot take, few of them and many: the CPU's bytes.
TEST_F(NormedLinearGpuTest, NormsEqualTheCpus) {
  const auto cpu = create_cpu_test_backend();
  ASSERT_OK(cpu);
  const auto expect_same = [&](std::int32_t tokens, std::int32_t width, std::int64_t offset) {
    const auto x = random_inputs(std::int64_t{tokens} * width + offset, 54);
    const auto weight = random_inputs(width + offset, 55, -1, 1);
    std::vector<bf16> expected(x.size(), bf16{kPoisonBits});
    const DeviceArray<bf16> device_x(gpu(), x);
    const DeviceArray<bf16> device_weight(gpu(), weight);
    const DeviceArray<bf16> device_y(gpu(), expected);
    RmsNormParams norm{.tokens = tokens,
                       .width = width,
                       .x = x.data() + offset,
                       .weight = weight.data() + offset,
                       .eps = 1e-6F,
                       .y = expected.data() + offset};
    ASSERT_OK((*cpu)->row_ops().rms_norm(norm));
    norm.x = device_x.data() + offset;
    norm.weight = device_weight.data() + offset;
    norm.y = device_y.data() + offset;
    ASSERT_OK(gpu().row_ops().rms_norm(norm));
    const auto y = device_y.download();
    EXPECT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(bf16)), 0)
        << tokens << " tokens, width " << width << ", offset " << offset;
  };
  for (const std::int64_t offset : {0, 1}) {  // values before the arrays
    for (const std::int32_t width : {1, 7, 100, 128, 1537, 24576}) expect_same(3, width, offset);
    for (const std::int32_t width : {7, 100, 1024, 1536}) expect_same(1024, width, offset);
  }
}

// A norm in front of linears: the bytes of rms_norm() and linear() one after the other, whatever shares a launch with
// it (products of few tokens, rounding where all round, nothing); in place and not, one and several segments.
TEST_F(NormedLinearGpuTest, NormedLinearEqualsNormThenLinear) {
  constexpr std::int64_t kOut = 320;
  for (const std::int64_t in : {128, 1024, 1536, 7168, 8192, 16384, 272}) {
    std::vector<std::unique_ptr<PackedLinear>> weights;
    for (const Encoding& encoding : kEncodings) {
      TestMatrix matrix;
      fill_matrix(matrix, encoding.weight, encoding.activation, kOut, in, 51);
      weights.push_back(pack(gpu(), matrix.host));
    }
    const DeviceArray<bf16> norm_weight(gpu(), random_inputs(in, 52, -1, 1));
    const std::vector<std::size_t> used_together[] = {{2}, {2, 3}, {0, 2}, {0, 1, 2, 3, 4, 5}};
    for (const std::int32_t tokens : {1, 2, 5, 8, 9, 40, 150}) {
      const auto x = random_inputs(tokens * in, 53);
      for (const auto& used : used_together) {
        const auto run = [&](bool together, bool in_place) {
          const DeviceArray<bf16> rows(gpu(), x);
          const DeviceArray<bf16> normed(gpu(), std::vector<bf16>(x.size(), bf16{kPoisonBits}));
          const RmsNormParams norm{.tokens = tokens,
                                   .width = static_cast<std::int32_t>(in),
                                   .x = rows.data(),
                                   .weight = norm_weight.data(),
                                   .eps = 1e-6F,
                                   .y = in_place ? rows.data() : normed.data()};
          const auto outputs = static_cast<std::int64_t>(used.size()) * kOut;
          const DeviceArray<float> y(gpu(),
                                     std::vector<float>(static_cast<std::size_t>(tokens * outputs), std::nanf("")));
          std::vector<LinearCall> calls;
          for (const std::size_t encoding : used) {
            calls.push_back({norm.y, in, weights[encoding].get(),
                             y.data() + static_cast<std::int64_t>(calls.size()) * kOut, outputs, OutputType::kF32});
          }
          if (together) {
            EXPECT_OK(gpu().ops().normed_linear(norm, calls));
          } else {
            EXPECT_OK(gpu().row_ops().rms_norm(norm));
            EXPECT_OK(gpu().ops().linear(tokens, calls));
          }
          return y.download();
        };
        const auto expected = run(false, false);
        for (const bool in_place : {false, true}) {
          EXPECT_TRUE(same_bits(run(true, in_place), expected))
              << "in " << in << " T " << tokens << " calls " << used.size() << " in place " << in_place;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
