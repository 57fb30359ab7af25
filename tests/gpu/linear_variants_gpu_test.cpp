// Kernel families of linear layers against one another.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/kernels/linear/linear_launch.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "support/expect_ok.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

// What is packed in tiles.
struct Weights {
  const char* name;
  WeightEncoding encoding;
  ActivationRounding activation;
};
constexpr Weights kWeights[] = {
    {"bf16", WeightEncoding::kBf16, ActivationRounding::kNone},
    {"fp8", WeightEncoding::kFp8Block128, ActivationRounding::kFp8Block128},
    {"fp8_wide", WeightEncoding::kFp8Block128, ActivationRounding::kNone},
};

std::vector<bf16> random_inputs(std::int64_t count) {
  std::mt19937 random(92);
  std::vector<bf16> x(static_cast<std::size_t>(count));
  for (bf16& value : x) value = random_bf16(random, -6, 3);
  return x;
}

// Every family and variant that runs a shape, alone.
class LinearVariants : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device_ = describe_gpu();
    ASSERT_NE(device_, nullptr);
    auto memory = gpu().allocate(std::size_t{32} << 20, "scratch");
    ASSERT_OK(memory);
    memory_ = std::move(memory).value();
    scratch_ = cuda::Scratch(memory_.data(), memory_.size());
  }

  // Their bytes are the first one's, which is the gemv kernel's for few tokens. Variants of family `but` are left out.
  // padding: of rows of y.
  void expect_same(const Weights& weights, std::int64_t out, std::int64_t in, std::int32_t tokens, OutputType type,
                   std::optional<cuda::LinearFamily> but = {}, const std::vector<bf16>& inputs = {},
                   std::int64_t padding = 0) {
    TestMatrix matrix;
    fill_matrix(matrix, weights.encoding, weights.activation, out, in, 91);
    const auto weight = pack(gpu(), matrix.host);
    const DeviceArray<bf16> x(gpu(), inputs.empty() ? random_inputs(tokens * in) : inputs);
    std::vector<float> expected;
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family == but) continue;
      const std::int64_t stride = out + padding;
      const DeviceArray<float> y(gpu(), std::vector<float>(static_cast<std::size_t>(tokens * stride), std::nanf("")));
      ASSERT_OK(gpu().synchronize());
      const LinearCall call{x.data(), in, weight.get(), y.data(), stride, type};
      cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(gpu().native_stream()),
                                    variant);
      ASSERT_OK(launcher.add(call));
      if (const Status status = launcher.flush(); !status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
        continue;
      }
      ASSERT_OK(gpu().synchronize());
      seen_.insert(name_of(variant));
      const std::vector<float> values = y.download();
      if (expected.empty()) expected = values;
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0)
          << weights.name << " [" << out << ", " << in << "] T " << tokens << " " << name_of(variant);
    }
    EXPECT_FALSE(expected.empty());
  }

  // Two problems that share their inputs and a launch, in more rounds than one.
  void expect_same_together(const Weights& kind, std::int64_t in, std::int32_t tokens) {
    constexpr std::array<std::int64_t, 2> kOuts{16640, 2112};
    std::array<TestMatrix, 2> matrices;
    std::array<std::unique_ptr<PackedLinear>, 2> weights;
    for (std::size_t i = 0; i < 2; ++i) {
      fill_matrix(matrices[i], kind.encoding, kind.activation, kOuts[i], in, 94 + static_cast<std::uint32_t>(i));
      weights[i] = pack(gpu(), matrices[i].host);
    }
    const DeviceArray<bf16> x(gpu(), random_inputs(tokens * in));
    const auto asked = cuda::linear_device(*device_, 65);
    ASSERT_OK(asked);
    std::vector<float> expected;
    bool single = false;
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      const std::vector<float> poison(static_cast<std::size_t>(tokens * (kOuts[0] + kOuts[1])), std::nanf(""));
      const DeviceArray<float> y(gpu(), poison);
      ASSERT_OK(gpu().synchronize());
      const std::array<LinearCall, 2> calls{
          LinearCall{x.data(), in, weights[0].get(), y.data(), kOuts[0], OutputType::kBf16},
          LinearCall{x.data(), in, weights[1].get(), y.data() + tokens * kOuts[0], kOuts[1], OutputType::kF32}};
      const std::array<cuda::LinearShape, 2> shapes{cuda::shape_of(calls[0]), cuda::shape_of(calls[1])};
      const auto plan = plan_variant(variant, *asked, tokens, shapes);
      single = single || (plan.ok() && plan->single_tiles > 0);
      cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(gpu().native_stream()),
                                    variant);
      for (const LinearCall& call : calls) ASSERT_OK(launcher.add(call));
      if (const Status status = launcher.flush(); !status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
        continue;
      }
      ASSERT_OK(gpu().synchronize());
      const std::vector<float> values = y.download();
      if (expected.empty()) expected = values;
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0)
          << kind.name << " T " << tokens << " " << name_of(variant);
    }
    EXPECT_FALSE(expected.empty());
    EXPECT_EQ(single, device_->facts().multiprocessors == 132) << "the shapes are for 132 multiprocessors";
  }

  std::unique_ptr<const cuda::CudaDevice> device_;
  Buffer memory_;
  cuda::Scratch scratch_;
  std::set<std::string> seen_;
};

// Row tiles, tokens and segments left over.
TEST_F(LinearVariants, GiveTheSameBytes) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{192, 384}, {320, 2048}, {192, 2304}, {448, 8192}};
  for (const auto& [out, in] : shapes) {
    for (const Weights& weights : kWeights) {
      for (const std::int32_t tokens : {3, 70, 200}) {
        for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) {
          expect_same(weights, out, in, tokens, type);
        }
      }
    }
  }
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    if (variant.family == cuda::LinearFamily::kPortable || variant.family == cuda::LinearFamily::kFp8) continue;
    EXPECT_TRUE(seen_.contains(name_of(variant))) << name_of(variant);
  }
}

// Items of every size end inside and at the end of their tokens.
TEST_F(LinearVariants, GiveTheSameBytesForEveryCountOfTokens) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  std::set<std::int32_t> counts{79, 81, 96, 97, 127, 128, 129, 161, 191, 192, 193, 255, 256, 257, 512};
  for (std::int32_t tokens = 65; tokens <= 300; tokens += 15) counts.insert(tokens);
  for (const std::int32_t tokens : counts) {
    for (const Weights& weights : kWeights) expect_same(weights, 704, 4224, tokens, OutputType::kBf16);
  }
}

// Blocks of rounded inputs of every size, with zeros of both signs, NaN and infinities, in outputs of any alignment.
TEST_F(LinearVariants, GiveTheSameBytesForEveryInput) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  constexpr std::int64_t kOut = 192;
  for (const std::int64_t in : {384, 2304}) {
    for (const std::int32_t tokens : {4, 70, 131}) {
      std::mt19937 random(93);
      std::vector<bf16> x(static_cast<std::size_t>(tokens * in));
      for (std::size_t i = 0; i < x.size(); ++i) {
        constexpr int kExponents = 255;  // finite values have so many, zeros and subnormal ones among them
        const auto block = static_cast<std::uint32_t>(i / 128 * 7 % kExponents);
        const std::uint32_t exponent = block - std::min(block, static_cast<std::uint32_t>(random() % 12));
        x[i].bits = static_cast<std::uint16_t>((random() & 0x807fU) | exponent << 7U);
      }
      const auto at = [&](std::int64_t token, std::int64_t input) -> bf16& {
        return x[static_cast<std::size_t>(token * in + input)];
      };
      std::fill_n(&at(1, 0), in, bf16{0x8000});
      at(2, 5) = {0x7fc0};
      at(3, in - 1) = {0xff80};
      if (tokens > 64) at(66, 130) = {0x7f80};
      for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) {
        for (const std::int64_t padding : {0, 3}) expect_same(kWeights[1], kOut, in, tokens, type, {}, x, padding);
      }
    }
  }
}

// In the tile kernel of pairs of row tiles the last round has single ones.
TEST_F(LinearVariants, GiveTheSameBytesTogether) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  for (const std::int32_t tokens : {65, 128, 300}) {
    for (const Weights& weights : {kWeights[0], kWeights[1]}) expect_same_together(weights, 512, tokens);
  }
}

// The same with few launches, for tools that follow every access. In the prefill kernel one lane of a warp arrives for
// all of them behind __syncwarp(), which racecheck does not take for the other lanes' arrival: there it gets inputs of
// which the ring holds all stages.
TEST_F(LinearVariants, FewTileVariants) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  expect_same(kWeights[2], 192, 2304, 100, OutputType::kF32, cuda::LinearFamily::kPrefill);
  expect_same(kWeights[2], 192, 384, 100, OutputType::kF32);
}
TEST_F(LinearVariants, FewSingleRowTiles) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  expect_same_together(kWeights[1], 128, 65);
}

}  // namespace
}  // namespace dsv4rt::test
