#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "backend/row_ops.h"
#include "gpu/support/gpu.h"
#include "gpu/support/linear_calls.h"
#include "layout/rounding.h"
#include "support/expect_ok.h"
#include "support/test_backend.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
constexpr std::uint16_t kPoison = 0x7eef;

// Relative L2 of FP32 outputs against the CPU: both multiply exactly and add in FP32, in another order. Twice the
// largest distance measured on an H200 (2.0e-6, BF16); E4M3 products in the tensor core would be 2e-4 apart.
constexpr double kTolerance = 4e-6;

double relative_l2(std::span<const float> value, std::span<const float> reference) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const double difference = double{value[i]} - double{reference[i]};
    error += difference * difference;
    norm += double{reference[i]} * double{reference[i]};
  }
  return std::sqrt(error / norm);
}

double largest_distance = 0;  // largest distance of this run: what kTolerance rests on

void expect_close(std::span<const float> value, std::span<const float> reference, const Encoding& encoding,
                  std::int32_t tokens) {
  const double distance = relative_l2(value, reference);
  largest_distance = std::max(largest_distance, distance);
  EXPECT_LE(distance, kTolerance) << encoding.name << " T " << tokens;
}

class LinearGpuTest : public GpuTest {
 protected:
  static void TearDownTestSuite() { std::printf("[     INFO ] largest distance %.2e\n", largest_distance); }

  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    EXPECT_OK(gpu().reserve_scratch(kScratchBytes));
    auto backend = create_cpu_test_backend();
    ASSERT_OK(backend);
    cpu_ = std::move(backend).value();
  }

  std::vector<float> cpu_f32(const PackedLinear& weight, const std::vector<bf16>& x, std::int32_t tokens) {
    std::vector<float> y(static_cast<std::size_t>(tokens * weight.out_features()));
    const LinearCall call{x.data(), weight.in_features(), &weight, y.data(), weight.out_features(), OutputType::kF32};
    EXPECT_OK(cpu_->ops().linear(tokens, std::span(&call, 1)));
    return y;
  }

  // Rows [first, first + tokens) of dense x; outputs poisoned before.
  static std::vector<float> gpu_f32(const PackedLinear& weight, const DeviceArray<bf16>& x, std::int64_t first,
                                    std::int32_t tokens) {
    const std::vector<float> poison(static_cast<std::size_t>(tokens * weight.out_features()), std::nanf(""));
    const DeviceArray<float> y(gpu(), poison);
    const LinearCall call{x.data() + first * weight.in_features(),
                          weight.in_features(),
                          &weight,
                          y.data(),
                          weight.out_features(),
                          OutputType::kF32};
    EXPECT_OK(gpu().ops().linear(tokens, std::span(&call, 1)));
    return y.download();
  }

  static std::vector<bf16> gpu_bf16(const PackedLinear& weight, const DeviceArray<bf16>& x, std::int32_t tokens) {
    const std::vector<bf16> poison(static_cast<std::size_t>(tokens * weight.out_features()), bf16{kPoison});
    const DeviceArray<bf16> y(gpu(), poison);
    const LinearCall call{x.data(), weight.in_features(), &weight, y.data(), weight.out_features(), OutputType::kBf16};
    EXPECT_OK(gpu().ops().linear(tokens, std::span(&call, 1)));
    return y.download();
  }

  // A weight, rows of inputs, and the outputs that one launch gives them.
  class AllRows {
   public:
    AllRows(const Encoding& encoding, std::int64_t out, std::int64_t in, std::int32_t rows, std::uint32_t seed,
            int min_exponent = -6, int max_exponent = 3)
        : encoding_(encoding.name), x_(gpu(), random_inputs(rows * in, seed + 1, min_exponent, max_exponent)) {
      TestMatrix matrix;
      fill_matrix(matrix, encoding.weight, encoding.activation, out, in, seed);
      weight_ = pack(gpu(), matrix.host);
      y_ = gpu_f32(*weight_, x_, 0, rows);
    }

    // A launch of rows [first, first + tokens) gives them the same bits.
    void expect_same_alone(std::int64_t first, std::int32_t tokens) const {
      const auto y = gpu_f32(*weight_, x_, first, tokens);
      const auto at = static_cast<std::size_t>(first * weight_->out_features());
      EXPECT_TRUE(same_bits(y, std::span(y_).subspan(at, y.size())))
          << encoding_ << " [" << weight_->out_features() << ", " << weight_->in_features() << "] T " << tokens
          << " first " << first;
    }

   private:
    const char* encoding_;
    DeviceArray<bf16> x_;
    std::unique_ptr<PackedLinear> weight_;
    std::vector<float> y_;
  };

  // Outputs of random inputs, so many rows at a time, against the CPU's; BF16 ones are the FP32 ones rounded.
  void expect_agrees(const Encoding& encoding, std::int64_t out, std::int64_t in,
                     const std::vector<std::int32_t>& counts, std::uint32_t seed) {
    TestMatrix matrix;
    fill_matrix(matrix, encoding.weight, encoding.activation, out, in, seed);
    const auto device_weight = pack(gpu(), matrix.host);
    const auto host_weight = pack(*cpu_, matrix.host);
    for (const std::int32_t tokens : counts) {
      SCOPED_TRACE(std::string(encoding.name) + " [" + std::to_string(out) + ", " + std::to_string(in) + "] T " +
                   std::to_string(tokens));
      const auto x = random_inputs(tokens * in, ++seed);
      const DeviceArray<bf16> device_x(gpu(), x);
      const auto y = gpu_f32(*device_weight, device_x, 0, tokens);
      expect_close(y, cpu_f32(*host_weight, x, tokens), encoding, tokens);
      const auto rounded = gpu_bf16(*device_weight, device_x, tokens);
      std::size_t different = 0;
      for (std::size_t i = 0; i < y.size(); ++i) different += rounded[i].bits != to_bf16(y[i]).bits ? 1 : 0;
      EXPECT_EQ(different, 0U);
    }
  }

  std::unique_ptr<Backend> cpu_;
};

// Shapes with and without tiles, of one and of several segments, with a row tile left over, and more inputs than a
// warp holds scales of.
TEST_F(LinearGpuTest, AgreesWithTheCpu) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{64, 128},   {192, 384}, {320, 2048},
                                                          {128, 4608}, {100, 272}, {64, 8192}};
  std::uint32_t seed = 1;
  for (const Encoding& encoding : kEncodings) {
    for (const auto& [out, in] : shapes) {
      expect_agrees(encoding, out, in, {1, 3, 8, 13, 30, 64, 97, 257}, seed);
      seed += 10;
    }
  }
}

// A row's bytes depend on the row alone: not on T, its place, its neighbours or the launch that T leads to.
TEST_F(LinearGpuTest, RowsAreIndependentOfTokensAndPlace) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{192, 384},  {320, 2048}, {1088, 4096},
                                                          {128, 7168}, {64, 16384}, {100, 272}};
  constexpr std::int32_t kMost = 300;
  for (const Encoding& encoding : kEncodings) {
    for (const auto& [out, in] : shapes) {
      const AllRows rows(encoding, out, in, kMost, 21, -20, 8);
      for (const std::int32_t tokens : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 100, 129, 257}) {
        for (const std::int32_t first : {0, 8, kMost - tokens}) rows.expect_same_alone(first, tokens);
      }
    }
  }
}

// Enough rows that one block sums every segment of an item, against the same rows at T = 1 where a cluster does.
TEST_F(LinearGpuTest, ClustersAndSingleBlocksSumAlike) {
  for (const Encoding& encoding : {kEncodings[0], kEncodings[2], kEncodings[3]}) {
    const AllRows rows(encoding, 4096, 2304, 1024, 23);
    for (const std::int32_t token : {0, 1, 127, 128, 700, 1023}) rows.expect_same_alone(token, 1);
    for (const std::int32_t tokens : {40, 128, 256, 512}) rows.expect_same_alone(64, tokens);
  }
}

// There are so many tokens that pairs of blocks take them: row tiles and tokens left over, one and several segments,
// outputs of both types, together and alone, aligned for the copy engine or not. Some of the rows alone give the same.
TEST_F(LinearGpuTest, ManyTokensEqualFew) {
  constexpr std::int32_t kTokens = 2100;
  constexpr std::int32_t kFew = 50;
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{1088, 8192}, {4096, 1024}, {2112, 2304}};
  for (const auto& [out, in] : shapes) {
    const DeviceArray<bf16> x(gpu(), random_inputs(kTokens * in, 31));
    std::vector<std::unique_ptr<PackedLinear>> weights;
    for (const Encoding& encoding : {kEncodings[0], kEncodings[2], kEncodings[3]}) {
      TestMatrix matrix;
      fill_matrix(matrix, encoding.weight, encoding.activation, out, in,
                  32 + static_cast<std::uint32_t>(weights.size()));
      weights.push_back(pack(gpu(), matrix.host));
    }
    for (const std::int64_t padding : {0, 1}) {
      const std::int64_t stride = out + padding;
      const auto poisoned = [&](std::int64_t tokens) {
        return std::make_unique<DeviceArray<float>>(
            gpu(), std::vector<float>(static_cast<std::size_t>(tokens * stride), std::nanf("")));
      };
      std::vector<std::unique_ptr<DeviceArray<float>>> outputs;
      std::vector<LinearCall> calls;
      for (const auto& weight : weights) {
        for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) {
          outputs.push_back(poisoned(kTokens));
          calls.push_back({x.data(), in, weight.get(), outputs.back()->data(), stride, type});
        }
      }
      ASSERT_OK(gpu().ops().linear(kTokens, calls));
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const std::vector<float> together = outputs[i]->download();
        const auto row_bytes = static_cast<std::size_t>(stride) * (calls[i].output == OutputType::kF32 ? 4 : 2);
        const auto run = [&](std::int32_t first, std::int32_t tokens) {
          const auto y = poisoned(tokens);
          LinearCall call = calls[i];
          call.x += first * in;
          call.y = y->data();
          EXPECT_OK(gpu().ops().linear(tokens, std::span(&call, 1)));
          const std::vector<float> values = y->download();
          EXPECT_EQ(std::memcmp(values.data(),
                                reinterpret_cast<const std::byte*>(together.data()) +
                                    static_cast<std::size_t>(first) * row_bytes,
                                static_cast<std::size_t>(tokens) * row_bytes),
                    0)
              << "[" << out << ", " << in << "] call " << i << " padding " << padding << " from " << first;
        };
        run(0, kTokens);
        for (const std::int32_t first : {0, 170, 1000, kTokens - kFew}) run(first, kFew);
      }
    }
  }
}

// Several calls of one operation: all encodings, outputs of both types, strided and shared inputs; bytes between
// the rows of y stay.
TEST_F(LinearGpuTest, StridedCallsShareOneOperation) {
  constexpr std::int64_t kIn = 2048;
  constexpr std::int64_t kStride = 2048 + 24;
  constexpr std::int64_t kOuts[] = {192, 64, 128, 100, 320, 16};
  constexpr std::int64_t kYStride = 1000;
  for (const std::int32_t tokens : {1, 2, 6, 9, 40, 130}) {
    const auto x = random_inputs(tokens * kStride + 8, 71);
    const DeviceArray<bf16> device_x(gpu(), x);
    std::vector<bf16> dense;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto row = x.begin() + t * kStride + 8;
      dense.insert(dense.end(), row, row + kIn);
    }
    const DeviceArray<bf16> device_dense(gpu(), dense);
    const DeviceArray<bf16> y(gpu(), std::vector<bf16>(static_cast<std::size_t>(tokens * kYStride), bf16{kPoison}));
    const DeviceArray<float> y_f32(gpu(), std::vector<float>(static_cast<std::size_t>(tokens * kYStride), -1.5F));
    std::vector<std::unique_ptr<PackedLinear>> weights;
    std::vector<LinearCall> calls;
    std::int64_t column = 3;
    for (std::size_t i = 0; i < std::size(kOuts); ++i) {
      TestMatrix matrix;
      fill_matrix(matrix, kEncodings[i].weight, kEncodings[i].activation, kOuts[i], kIn, static_cast<std::uint32_t>(i));
      weights.push_back(pack(gpu(), matrix.host));
      const bool as_float = i % 2 == 1;
      calls.push_back({.x = i == 3 ? device_dense.data() : device_x.data() + 8,
                       .x_stride = i == 3 ? kIn : kStride,
                       .weight = weights.back().get(),
                       .y = as_float ? static_cast<void*>(y_f32.data() + column) : y.data() + column,
                       .y_stride = kYStride,
                       .output = as_float ? OutputType::kF32 : OutputType::kBf16});
      column += kOuts[i] + 5;
    }
    ASSERT_OK(gpu().ops().linear(tokens, calls));
    const auto out = y.download();
    const auto out_f32 = y_f32.download();
    std::vector<bool> written(out.size());
    std::vector<bool> written_f32(out.size());
    column = 3;
    for (std::size_t i = 0; i < std::size(kOuts); ++i) {
      const auto expected = gpu_f32(*weights[i], device_dense, 0, tokens);
      std::size_t different = 0;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t n = 0; n < kOuts[i]; ++n) {
          const auto at = static_cast<std::size_t>(t * kYStride + column + n);
          const float value = expected[static_cast<std::size_t>(t * kOuts[i] + n)];
          const bool same = i % 2 == 1 ? out_f32[at] == value : out[at].bits == to_bf16(value).bits;
          different += same ? 0 : 1;
          (i % 2 == 1 ? written_f32 : written)[at] = true;
        }
      }
      EXPECT_EQ(different, 0U) << kEncodings[i].name << " T " << tokens;
      column += kOuts[i] + 5;
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(written[i] || out[i].bits == kPoison) << i;
      ASSERT_TRUE(written_f32[i] || out_f32[i] == -1.5F) << i;
    }
  }
}

// Calls of one launch may have unequally many inputs: each gives what it gives alone.
TEST_F(LinearGpuTest, WidthsShareALaunch) {
  constexpr std::int64_t kOut = 320;
  constexpr std::int64_t kIns[] = {1152, 2048, 1536};  // two segments each
  for (const Encoding& encoding : {kEncodings[0], kEncodings[2], kEncodings[3]}) {
    std::vector<std::unique_ptr<PackedLinear>> weights;
    for (const std::int64_t in : kIns) {
      TestMatrix matrix;
      fill_matrix(matrix, encoding.weight, encoding.activation, kOut, in, static_cast<std::uint32_t>(in));
      weights.push_back(pack(gpu(), matrix.host));
    }
    for (const std::int32_t tokens : {1, 2, 3, 8, 33, 130}) {
      std::vector<std::unique_ptr<DeviceArray<bf16>>> inputs;
      for (const std::int64_t in : kIns) {
        inputs.push_back(std::make_unique<DeviceArray<bf16>>(gpu(), random_inputs(tokens * in, 57)));
      }
      const std::vector<float> poison(static_cast<std::size_t>(tokens * kOut), std::nanf(""));
      const auto run = [&](std::size_t first, std::size_t end) {
        std::vector<std::unique_ptr<DeviceArray<float>>> outputs;
        std::vector<LinearCall> calls;
        for (std::size_t i = first; i < end; ++i) {
          outputs.push_back(std::make_unique<DeviceArray<float>>(gpu(), poison));
          calls.push_back(
              {inputs[i]->data(), kIns[i], weights[i].get(), outputs.back()->data(), kOut, OutputType::kF32});
        }
        EXPECT_OK(gpu().ops().linear(tokens, calls));
        std::vector<std::vector<float>> found;
        for (const auto& output : outputs) found.push_back(output->download());
        return found;
      };
      const auto together = run(0, std::size(kIns));
      for (std::size_t i = 0; i < std::size(kIns); ++i) {
        EXPECT_TRUE(same_bits(together[i], run(i, i + 1)[0])) << encoding.name << " in " << kIns[i] << " T " << tokens;
      }
    }
  }
}

// The groups of wo_a: one launch over slices of one matrix and of one row of inputs; more groups than one launch takes.
TEST_F(LinearGpuTest, GroupedSlices) {
  constexpr std::int64_t kGroups = 20;
  constexpr std::int64_t kRows = 64;
  constexpr std::int64_t kIn = 2048;
  for (const Encoding& encoding : {kEncodings[0], kEncodings[2], kEncodings[3]}) {
    TestMatrix matrix;
    fill_matrix(matrix, encoding.weight, encoding.activation, kGroups * kRows, kIn, 5);
    std::vector<std::unique_ptr<PackedLinear>> device_weights;
    std::vector<std::unique_ptr<PackedLinear>> host_weights;
    for (std::int64_t g = 0; g < kGroups; ++g) {
      device_weights.push_back(pack(gpu(), matrix.host.rows(g * kRows, kRows)));
      host_weights.push_back(pack(*cpu_, matrix.host.rows(g * kRows, kRows)));
    }
    for (const std::int32_t tokens : {1, 2, 33, 150}) {
      const auto x = random_inputs(tokens * kGroups * kIn, 6);
      const DeviceArray<bf16> device_x(gpu(), x);
      const std::vector<float> poison(static_cast<std::size_t>(tokens * kGroups * kRows), std::nanf(""));
      const DeviceArray<float> y(gpu(), poison);
      std::vector<float> expected = poison;
      std::vector<LinearCall> calls;
      std::vector<LinearCall> host_calls;
      for (std::int64_t g = 0; g < kGroups; ++g) {
        LinearCall call{device_x.data() + g * kIn, kGroups * kIn,   device_weights[static_cast<std::size_t>(g)].get(),
                        y.data() + g * kRows,      kGroups * kRows, OutputType::kF32};
        calls.push_back(call);
        call.x = x.data() + g * kIn;
        call.weight = host_weights[static_cast<std::size_t>(g)].get();
        call.y = expected.data() + g * kRows;
        host_calls.push_back(call);
      }
      ASSERT_OK(gpu().ops().linear(tokens, calls));
      ASSERT_OK(cpu_->ops().linear(tokens, host_calls));
      expect_close(y.download(), expected, encoding, tokens);
    }
  }
}

struct LaunchShape {
  std::int64_t out;
  std::int64_t in;
};
std::string shape_name(const LaunchShape& shape) {
  return std::to_string(shape.out) + "x" + std::to_string(shape.in);
}

// Shapes of so many row tiles that a block of few tokens multiplies several segments, of unequal length: two of the
// weight's two, two of four, four of four, four of eight.
constexpr LaunchShape kManyRowTiles[] = {{5120, 1152}, {2624, 2304}, {5184, 2304}, {2560, 4608}};

// The blocks that take 65 tokens are what these are compared with.
class SegmentsOfABlock : public LinearGpuTest, public testing::WithParamInterface<LaunchShape> {};
TEST_P(SegmentsOfABlock, SumAsOthersDo) {
  constexpr std::int32_t kMost = 65;
  for (const Encoding& encoding : {kEncodings[0], kEncodings[2]}) {
    const AllRows rows(encoding, GetParam().out, GetParam().in, kMost, 25);
    for (const std::int32_t tokens : {5, 16, 17, 32, 33, 64}) rows.expect_same_alone(kMost - tokens, tokens);
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, SegmentsOfABlock, testing::ValuesIn(kManyRowTiles),
                         [](const auto& info) { return shape_name(info.param); });

// The kernels for tile-packed weights in all their clusters, each in so few launches that tools can follow every
// access; which one a shape takes follows from its segments (1, 2, 4, 8), the tokens and the estimates of the plan.
class FewTileLaunches : public LinearGpuTest,
                        public testing::WithParamInterface<std::tuple<LaunchShape, std::int32_t>> {};
TEST_P(FewTileLaunches, AgreesWithTheCpu) {
  const auto& [shape, tokens] = GetParam();
  expect_agrees(kEncodings[2], shape.out, shape.in, {tokens}, 27);
}
std::string launch_name(const testing::TestParamInfo<std::tuple<LaunchShape, std::int32_t>>& info) {
  const auto& [shape, tokens] = info.param;
  return shape_name(shape) + "T" + std::to_string(tokens);
}
INSTANTIATE_TEST_SUITE_P(OneRowTile, FewTileLaunches,
                         testing::Combine(testing::Values(LaunchShape{64, 384}, LaunchShape{64, 1152},
                                                          LaunchShape{64, 2304}, LaunchShape{64, 4608}),
                                          testing::Values(1, 5, 20, 40, 65)),
                         launch_name);
INSTANTIATE_TEST_SUITE_P(ManyRowTiles, FewTileLaunches,
                         testing::Combine(testing::ValuesIn(kManyRowTiles), testing::Values(5, 20, 40, 65)),
                         launch_name);
INSTANTIATE_TEST_SUITE_P(TwoRowTilesABlock, FewTileLaunches,
                         testing::Combine(testing::Values(LaunchShape{8512, 1024}), testing::Values(65)), launch_name);
INSTANTIATE_TEST_SUITE_P(Pairs, FewTileLaunches,
                         testing::Combine(testing::Values(LaunchShape{4352, 384}), testing::Values(256)), launch_name);

// The same for lane-packed weights, whose kernels differ by encoding and tokens of a block.
TEST_F(LinearGpuTest, FewLaneLaunches) {
  for (const Encoding& encoding : kEncodings) expect_agrees(encoding, 100, 272, {3, 20, 40}, 29);
}

// Every weight code, and every input code at scale one, through the hardware's own conversion.
TEST_F(LinearGpuTest, EveryE4m3CodeIsExact) {
  constexpr std::int64_t kSize = 256;
  TestMatrix identity;
  fill_matrix(identity, WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, kSize, kSize, 1);
  for (std::byte& scale : identity.scale) scale = std::byte{127};
  for (std::size_t i = 0; i < identity.weight.size(); ++i) {
    identity.weight[i] = std::byte{i / kSize == i % kSize ? std::uint8_t{0x38} : std::uint8_t{0}};
  }
  // Inputs: all finite codes of both signs and the midpoints between neighbours, two rows.
  std::vector<bf16> x(2 * kSize);
  for (std::size_t code = 0; code < 0x7e; ++code) {
    x[code] = to_bf16(kE4m3Values[code]);
    x[128 + code] = to_bf16(-kE4m3Values[code]);
    const float midpoint = (kE4m3Values[code] + kE4m3Values[code + 1]) / 2;
    x[kSize + code] = to_bf16(midpoint);
    x[kSize + 128 + code] = to_bf16(-midpoint);
  }
  for (const std::size_t block : {0, 128, 256, 384}) x[block + 127] = to_bf16(448.0F);
  std::vector<float> expected;
  for (const bf16 value : x) expected.push_back(to_float(value));
  round_activation_fp8(expected.data(), expected.size());
  const DeviceArray<bf16> device_x(gpu(), x);
  EXPECT_EQ(gpu_f32(*pack(gpu(), identity.host), device_x, 0, 2), expected);

  // Weights: row n holds code n in column n alone, against inputs of one.
  const std::vector<bf16> ones(kSize, to_bf16(1.0F));
  const DeviceArray<bf16> device_ones(gpu(), ones);
  for (std::size_t n = 0; n < kSize; ++n) {
    identity.weight[n * kSize + n] = static_cast<std::byte>(n);
  }
  for (const ActivationRounding activation : {ActivationRounding::kFp8Block128, ActivationRounding::kNone}) {
    identity.host.activation = activation;
    const auto y = gpu_f32(*pack(gpu(), identity.host), device_ones, 0, 1);
    for (std::size_t n = 0; n < kSize; ++n) {
      if (n % 128 == kE4m3NanCode) continue;
      EXPECT_EQ(y[n], kE4m3Values[n]) << "code " << n << " rounding " << static_cast<int>(activation);
    }
  }
}

TEST_F(LinearGpuTest, NanAndInfinityStayInTheirRow) {
  constexpr std::int64_t kOut = 128;
  constexpr std::int64_t kIn = 2048;
  for (const Encoding& encoding : kEncodings) {
    TestMatrix matrix;
    fill_matrix(matrix, encoding.weight, encoding.activation, kOut, kIn, 81);
    const auto weight = pack(gpu(), matrix.host);
    for (const std::int32_t tokens : {8, 12}) {
      auto x = random_inputs(tokens * kIn, 82);
      const auto clean = gpu_f32(*weight, DeviceArray<bf16>(gpu(), x), 0, tokens);
      x[3 * kIn + 5] = {0xffc1};  // NaN with a payload
      x[7 * kIn + 200] = {0x7f80};
      const auto y = gpu_f32(*weight, DeviceArray<bf16>(gpu(), x), 0, tokens);
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t n = 0; n < kOut; ++n) {
          const auto at = static_cast<std::size_t>(t * kOut + n);
          if (t == 7 && encoding.activation == ActivationRounding::kNone) {
            ASSERT_FALSE(std::isfinite(y[at])) << encoding.name << " " << n;
          } else if (t == 3 || t == 7) {
            ASSERT_TRUE(std::isnan(y[at])) << encoding.name << " " << n;
          } else {
            ASSERT_EQ(y[at], clean[at]) << encoding.name << " " << t << " " << n;
          }
        }
      }
    }
  }
}

TEST_F(LinearGpuTest, RefusesBeforeALaunch) {
  TestMatrix matrix;
  fill_matrix(matrix, WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128, 128, 256, 1);
  const auto weight = pack(gpu(), matrix.host);
  const DeviceArray<bf16> x(gpu(), random_inputs(600, 2));
  const DeviceArray<float> y(gpu(), std::vector<float>(256));
  const LinearCall good{x.data(), 256, weight.get(), y.data(), 128, OutputType::kF32};
  const auto run = [&](const LinearCall& call, std::int32_t tokens = 1) {
    return gpu().ops().linear(tokens, std::span(&call, 1));
  };
  EXPECT_OK(run(good));
  EXPECT_OK(run(good, 0));
  EXPECT_EQ(run(good, -1).code(), StatusCode::kInvalidArgument);
  LinearCall bad = good;
  bad.x_stride = 255;
  EXPECT_EQ(run(bad).code(), StatusCode::kInvalidArgument);
  bad = good;
  bad.y_stride = 127;
  EXPECT_EQ(run(bad).code(), StatusCode::kInvalidArgument);
  bad = good;
  bad.weight = nullptr;
  EXPECT_EQ(run(bad).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(gpu().pack_linear(matrix.host.rows(8, 16)).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(gpu().pack_linear(matrix.host.rows(64, 128)).status().code(), StatusCode::kBadInput);
}

}  // namespace
}  // namespace dsv4rt::test
