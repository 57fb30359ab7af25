// Linears of LinearPrecision::kFp8: the same bytes from every kernel and for every number of tokens, as far from the
// exact ones as sums of about 14 bits are.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"
#include "backend/row_ops.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "layout/codec_e4m3.h"
#include "layout/rounding.h"
#include "support/expect_ok.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{192} << 20;
constexpr auto kRounded = ActivationRounding::kFp8Block128;

std::vector<bf16> random_inputs(std::int64_t count, std::uint32_t seed = 92) {
  std::mt19937 random(seed);
  std::vector<bf16> x(static_cast<std::size_t>(count));
  for (bf16& value : x) value = random_bf16(random, -6, 3);
  return x;
}

// A weight [out, in] whose products are of E4M3.
struct Weight {
  TestMatrix matrix;
  std::unique_ptr<PackedLinear> packed;

  Weight(Backend& backend, std::int64_t out, std::int64_t in, std::uint32_t seed = 91) {
    fill_matrix(matrix, WeightEncoding::kFp8Block128, kRounded, out, in, seed);
    packed = pack(backend, matrix.host);
  }
};

class LinearFp8GpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device_ = describe_gpu();
    ASSERT_NE(device_, nullptr);
    if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
    auto backend = create_cuda_backend({.device = 0, .linear_precision = LinearPrecision::kFp8});
    ASSERT_OK(backend);
    fp8_ = std::move(backend).value();
    ASSERT_OK(fp8_->reserve_scratch(kScratchBytes));
    ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
    auto memory = fp8_->allocate(kScratchBytes, "scratch");
    ASSERT_OK(memory);
    memory_ = std::move(memory).value();
    scratch_ = cuda::Scratch(memory_.data(), memory_.size());
  }

  // FP32 outputs of the first `tokens` rows of x.
  static std::vector<float> linear(Backend& backend, const PackedLinear& weight, const bf16* x, std::int32_t tokens) {
    const std::int64_t out = weight.out_features();
    const DeviceArray<float> y(backend, std::vector<float>(static_cast<std::size_t>(tokens * out), std::nanf("")));
    const LinearCall call{x, weight.in_features(), &weight, y.data(), out, OutputType::kF32};
    EXPECT_OK(backend.ops().linear(tokens, std::span(&call, 1)));
    EXPECT_OK(backend.synchronize());
    return y.download();
  }

  // Every variant that runs the shape; their bytes are the first one's. Those of family `but` are left out.
  void expect_same(std::int64_t out, std::int64_t in, std::int32_t tokens, OutputType type,
                   std::optional<cuda::LinearFamily> but = {}) {
    const Weight weight(*fp8_, out, in);
    const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * in));
    std::vector<float> expected;
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family == but) continue;
      const DeviceArray<float> y(*fp8_, std::vector<float>(static_cast<std::size_t>(tokens * out), std::nanf("")));
      ASSERT_OK(fp8_->synchronize());
      const LinearCall call{x.data(), in, weight.packed.get(), y.data(), out, type};
      cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(fp8_->native_stream()),
                                    variant);
      ASSERT_OK(launcher.add(call));
      if (const Status status = launcher.flush(); !status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
        continue;
      }
      ASSERT_OK(fp8_->synchronize());
      seen_.insert(name_of(variant));
      const std::vector<float> values = y.download();
      if (expected.empty()) expected = values;
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0)
          << "[" << out << ", " << in << "] T " << tokens << " " << name_of(variant);
    }
    EXPECT_FALSE(expected.empty());
  }

  // Outputs from y + 1 on with a stride of three values more, which leaves no whole units, have the bytes of dense
  // ones; what lies between rows stays `poison`. variant: forced; nothing: what the dispatch takes.
  template <class Value>
  void expect_anywhere(std::int32_t tokens, OutputType type, std::optional<cuda::LinearVariant> variant, Value poison) {
    constexpr std::int64_t kOut = 320;
    constexpr std::int64_t kIn = 2048;
    constexpr std::int64_t kInStride = kIn + 64;
    constexpr std::int64_t kOddStride = kOut + 3;
    const Weight weight(*fp8_, kOut, kIn);
    const std::vector<bf16> values = random_inputs(tokens * kIn);
    std::vector<bf16> apart(static_cast<std::size_t>(tokens * kInStride));
    for (std::int32_t t = 0; t < tokens; ++t) {
      std::copy_n(values.begin() + t * kIn, kIn, apart.begin() + t * kInStride);
    }
    const DeviceArray<bf16> x(*fp8_, values);
    const DeviceArray<bf16> strided(*fp8_, apart);
    const auto run = [&](const bf16* from, std::int64_t x_stride, std::int64_t y_stride, std::int64_t first) {
      const auto count = static_cast<std::size_t>(tokens * y_stride + first);
      const DeviceArray<Value> y(*fp8_, std::vector<Value>(count, poison));
      EXPECT_OK(fp8_->synchronize());
      const LinearCall call{from, x_stride, weight.packed.get(), y.data() + first, y_stride, type};
      if (variant) {
        cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(fp8_->native_stream()),
                                      variant);
        EXPECT_OK(launcher.add(call));
        EXPECT_OK(launcher.flush());
      } else {
        EXPECT_OK(fp8_->ops().linear(tokens, std::span(&call, 1)));
      }
      EXPECT_OK(fp8_->synchronize());
      return y.download();
    };
    const auto same = [](const Value& a, const Value& b) { return std::memcmp(&a, &b, sizeof(Value)) == 0; };
    const std::vector<Value> dense = run(x.data(), kIn, kOut, 0);
    const std::vector<Value> odd = run(strided.data(), kInStride, kOddStride, 1);
    EXPECT_TRUE(same(odd[0], poison));
    for (std::int32_t t = 0; t < tokens; ++t) {
      for (std::int64_t n = 0; n < kOddStride; ++n) {
        const Value value = odd[static_cast<std::size_t>(1 + t * kOddStride + n)];
        const Value wanted = n < kOut ? dense[static_cast<std::size_t>(t * kOut + n)] : poison;
        ASSERT_TRUE(same(value, wanted)) << "row " << t << " output " << n;
      }
    }
  }

  std::unique_ptr<const cuda::CudaDevice> device_;
  std::unique_ptr<Backend> fp8_;
  Buffer memory_;
  cuda::Scratch scratch_;
  std::set<std::string> seen_;
};

// Row tiles, tokens and segments left over.
TEST_F(LinearFp8GpuTest, VariantsGiveTheSameBytes) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{192, 384}, {320, 2048}, {192, 2304}, {448, 8192}};
  for (const auto& [out, in] : shapes) {
    for (const std::int32_t tokens : {3, 70, 200}) {
      for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) expect_same(out, in, tokens, type);
    }
  }
  // Blocks wait for places while the matrix units and copies of others keep shared memory busy.
  for (int i = 0; i < 4; ++i) expect_same(4096, 8192, 768, OutputType::kBf16);
  expect_same(2048, 7168, 1024, OutputType::kBf16);  // clusters of four and eight
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    using enum cuda::LinearFamily;
    if (variant.family != kGemv && variant.family != kSplitK && variant.family != kFp8) continue;
    if (variant.family == kSplitK && !cuda::kSplitKVariants[static_cast<std::size_t>(variant.number)].takes_codes)
      continue;
    EXPECT_TRUE(seen_.contains(name_of(variant))) << name_of(variant);
  }
}

// The same with few launches, for tools that follow every access. In the kernel for many tokens one lane of a warp
// arrives for all of them behind __syncwarp(), which racecheck does not take for the other lanes' arrival: there it
// gets inputs of which the ring holds all stages.
TEST_F(LinearFp8GpuTest, FewVariants) {
  expect_same(192, 2304, 3, OutputType::kF32, cuda::LinearFamily::kFp8);
  expect_same(192, 2304, 100, OutputType::kBf16, cuda::LinearFamily::kFp8);
  expect_same(192, 384, 100, OutputType::kBf16);
}

// A row's bytes do not depend on how many others there are.
TEST_F(LinearFp8GpuTest, TokensDoNotChangeEachOther) {
  constexpr std::int32_t kMost = 8192;
  std::vector<std::int32_t> counts;
  for (std::int32_t tokens = 1; tokens <= 300; ++tokens) counts.push_back(tokens);
  for (const std::int32_t tokens : {512, 1000, 2048}) counts.push_back(tokens);
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{320, 1024}, {256, 4096}, {192, 8192}};
  for (const auto& [out, in] : shapes) {
    const Weight weight(*fp8_, out, in);
    const DeviceArray<bf16> x(*fp8_, random_inputs(kMost * in));
    const std::vector<float> all = linear(*fp8_, *weight.packed, x.data(), kMost);
    for (const std::int32_t tokens : counts) {
      const std::vector<float> few = linear(*fp8_, *weight.packed, x.data(), tokens);
      EXPECT_EQ(std::memcmp(few.data(), all.data(), few.size() * sizeof(float)), 0)
          << "[" << out << ", " << in << "] T " << tokens;
    }
  }
}

// Distance from exact sums of the same values: an H200 gives 2.1e-4 to 2.6e-4, exact products less than 1e-6.
TEST_F(LinearFp8GpuTest, SumsKeepFourteenBits) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{320, 1024}, {256, 4096}, {192, 8192}};
  for (const auto& [out, in] : shapes) {
    for (const std::int32_t tokens : {2, 50, 300}) {
      const Weight weight(*fp8_, out, in);
      const auto exact = pack(gpu(), weight.matrix.host);
      const DeviceArray<bf16> x(gpu(), random_inputs(tokens * in));
      const std::vector<float> reference = linear(gpu(), *exact, x.data(), tokens);
      const std::vector<float> values = linear(*fp8_, *weight.packed, x.data(), tokens);
      double error = 0;
      double norm = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        error += std::pow(double{values[i]} - double{reference[i]}, 2);
        norm += double{reference[i]} * double{reference[i]};
      }
      const double distance = std::sqrt(error / norm);
      EXPECT_LT(distance, 5e-4) << "[" << out << ", " << in << "] T " << tokens;
      EXPECT_GT(distance, 1e-5) << "[" << out << ", " << in << "] T " << tokens << ": these are not sums of E4M3";
    }
  }
}

// What is no FP8 weight stays as it is, also in the launches that both share. FP8 weights whose own rule leaves inputs
// as they are have those rounded here, as the others.
TEST_F(LinearFp8GpuTest, OtherWeightsStayExact) {
  constexpr std::int64_t kOut = 192;
  constexpr std::int64_t kIn = 4096;
  for (const std::int32_t tokens : {2, 40, 100, 300}) {
    const DeviceArray<bf16> x(gpu(), random_inputs(tokens * kIn));
    const auto count = static_cast<std::size_t>(tokens * kOut);
    const std::pair<WeightEncoding, ActivationRounding> kinds[] = {
        {WeightEncoding::kFp8Block128, kRounded},
        {WeightEncoding::kBf16, ActivationRounding::kNone},
        {WeightEncoding::kFp8Block128, ActivationRounding::kNone},
    };
    std::vector<std::vector<float>> found[2];
    for (int i = 0; i < 2; ++i) {
      Backend& backend = i == 0 ? gpu() : *fp8_;
      std::vector<std::unique_ptr<TestMatrix>> matrices;
      std::vector<std::unique_ptr<PackedLinear>> weights;
      std::vector<std::unique_ptr<DeviceArray<float>>> outputs;
      std::vector<LinearCall> calls;
      for (const auto& [encoding, activation] : kinds) {
        matrices.push_back(std::make_unique<TestMatrix>());
        fill_matrix(*matrices.back(), encoding, activation, kOut, kIn, 7);
        weights.push_back(pack(backend, matrices.back()->host));
        outputs.push_back(std::make_unique<DeviceArray<float>>(backend, std::vector<float>(count, std::nanf(""))));
        calls.push_back({x.data(), kIn, weights.back().get(), outputs.back()->data(), kOut, OutputType::kF32});
      }
      ASSERT_OK(backend.ops().linear(tokens, calls));
      ASSERT_OK(backend.synchronize());
      for (const auto& output : outputs) found[i].push_back(output->download());
    }
    for (std::size_t k = 0; k < std::size(kinds); ++k) {
      const bool same = std::memcmp(found[0][k].data(), found[1][k].data(), count * sizeof(float)) == 0;
      EXPECT_EQ(same, kinds[k].first == WeightEncoding::kBf16) << "weight " << k << " T " << tokens;
    }
    EXPECT_EQ(std::memcmp(found[1][0].data(), found[1][2].data(), count * sizeof(float)), 0) << "T " << tokens;
  }
}

// Inputs that come as codes: groups of output projections, which read neighbouring columns of one row, as one launch or
// several, have the bytes of products that encode them themselves.
TEST_F(LinearFp8GpuTest, EncodedInputs) {
  constexpr std::int64_t kOut = 192;
  for (const auto& [groups, in] : {std::pair<std::int64_t, std::int64_t>{8, 1024}, {17, 512}, {2, 8192}}) {
    const std::int64_t width = groups * in;
    std::vector<std::unique_ptr<Weight>> weights;
    for (std::int64_t g = 0; g < groups; ++g) {
      weights.push_back(std::make_unique<Weight>(*fp8_, kOut, in, static_cast<std::uint32_t>(17 + g)));
    }
    for (const std::int32_t tokens : {3, 17, 40, 64, 65, 100, 128, 131, 200, 500}) {
      SCOPED_TRACE("T " + std::to_string(tokens) + " groups " + std::to_string(groups));
      const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * width));
      const std::int32_t stride = encoded_scale_stride(tokens + 5);
      const DeviceArray<std::uint8_t> codes(*fp8_, std::vector<std::uint8_t>(static_cast<std::size_t>(tokens * width)));
      const DeviceArray<float> scales(
          *fp8_, std::vector<float>(static_cast<std::size_t>(width / kEncodedBlockValues * stride), std::nanf("")));
      const EncodedRows rows{codes.data(), width, scales.data(), stride};
      ASSERT_OK(fp8_->synchronize());
      ASSERT_OK(cuda::encode_input({.x = x.data(), .x_stride = width, .to = rows, .tokens = tokens}, 0,
                                   static_cast<cudaStream_t>(fp8_->native_stream())));
      const auto count = static_cast<std::size_t>(tokens * groups * kOut);
      std::vector<std::vector<float>> found;
      for (const bool encoded : {false, true}) {
        const DeviceArray<float> y(*fp8_, std::vector<float>(count, std::nanf("")));
        std::vector<LinearCall> calls;
        for (std::int64_t g = 0; g < groups; ++g) {
          ASSERT_TRUE(fp8_->ops().takes_encoded_rows(tokens, *weights[static_cast<std::size_t>(g)]->packed));
          LinearCall call{.weight = weights[static_cast<std::size_t>(g)]->packed.get(),
                          .y = y.data() + g * kOut,
                          .y_stride = groups * kOut,
                          .output = OutputType::kF32};
          if (encoded) {
            call.encoded = rows;
            call.encoded_column = g * in;
          } else {
            call.x = x.data() + g * in;
            call.x_stride = width;
          }
          calls.push_back(call);
        }
        ASSERT_OK(fp8_->ops().linear(tokens, calls));
        ASSERT_OK(fp8_->synchronize());
        found.push_back(y.download());
      }
      EXPECT_EQ(std::memcmp(found[0].data(), found[1].data(), count * sizeof(float)), 0);
    }
  }
}

// Outputs that leave as codes are what rounding makes of the outputs that leave as values, with every kernel that does
// so and with what the dispatch takes; others refuse.
TEST_F(LinearFp8GpuTest, EncodedOutputs) {
  constexpr std::int64_t kGroups = 3;
  constexpr std::int64_t kOut = 384;
  constexpr std::int64_t kIn = 2048;
  constexpr std::int64_t kFirstColumn = 128;  // outputs go to a part of a row of codes
  constexpr std::int64_t kWidth = kFirstColumn + kGroups * kOut + 128;
  constexpr std::uint8_t kPoisonCode = 0x5a;
  std::vector<std::unique_ptr<Weight>> weights;
  for (std::int64_t g = 0; g < kGroups; ++g) {
    weights.push_back(std::make_unique<Weight>(*fp8_, kOut, kIn, static_cast<std::uint32_t>(31 + g)));
  }
  std::vector<std::optional<cuda::LinearVariant>> variants{std::nullopt};
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    if (variant.family == cuda::LinearFamily::kFp8) variants.emplace_back(variant);
  }
  int encoding = 0;
  for (const std::int32_t tokens : {3, 64, 130, 300, 2000}) {
    std::vector<bf16> values = random_inputs(tokens * kGroups * kIn);
    values[5] = {0x7fc0};                                      // NaN: the first token's outputs
    std::fill_n(values.begin() + kGroups * kIn, kIn, bf16{});  // the second token's are zero, of the first group
    const DeviceArray<bf16> x(*fp8_, values);
    const std::int32_t stride = encoded_scale_stride(tokens);
    const std::int64_t x_width = kGroups * kIn;
    const DeviceArray<std::uint8_t> codes(*fp8_, std::vector<std::uint8_t>(static_cast<std::size_t>(tokens * x_width)));
    const DeviceArray<float> scales(
        *fp8_, std::vector<float>(static_cast<std::size_t>(x_width / kEncodedBlockValues * stride)));
    const EncodedRows rows{codes.data(), x_width, scales.data(), stride};
    ASSERT_OK(fp8_->synchronize());
    ASSERT_OK(cuda::encode_input({.x = x.data(), .x_stride = x_width, .to = rows, .tokens = tokens}, 0,
                                 static_cast<cudaStream_t>(fp8_->native_stream())));
    const DeviceArray<bf16> y(*fp8_, std::vector<bf16>(static_cast<std::size_t>(tokens * kGroups * kOut)));
    std::vector<LinearCall> calls;
    for (std::int64_t g = 0; g < kGroups; ++g) {
      LinearCall call{.weight = weights[static_cast<std::size_t>(g)]->packed.get(),
                      .y = y.data() + g * kOut,
                      .y_stride = kGroups * kOut};
      call.encoded = rows;
      call.encoded_column = g * kIn;
      calls.push_back(call);
    }
    ASSERT_OK(fp8_->ops().linear(tokens, calls));
    const Result<bool> dispatched = fp8_->ops().encodes_outputs(tokens, calls);
    ASSERT_OK(dispatched);
    ASSERT_OK(fp8_->synchronize());
    const std::vector<bf16> expected = y.download();
    for (const auto& variant : variants) {
      SCOPED_TRACE("T " + std::to_string(tokens) + " " + (variant ? name_of(*variant) : "dispatched"));
      const DeviceArray<std::uint8_t> out_codes(
          *fp8_, std::vector<std::uint8_t>(static_cast<std::size_t>(tokens * kWidth), kPoisonCode));
      const DeviceArray<float> out_scales(
          *fp8_, std::vector<float>(static_cast<std::size_t>(kWidth / kEncodedBlockValues * stride), -3.0F));
      ASSERT_OK(fp8_->synchronize());
      std::vector<LinearCall> encoded = calls;
      for (std::size_t g = 0; g < encoded.size(); ++g) {
        encoded[g].y = nullptr;
        encoded[g].encoded_y = EncodedRows{out_codes.data(), kWidth, out_scales.data(), stride};
        encoded[g].encoded_y_column = kFirstColumn + static_cast<std::int64_t>(g) * kOut;
      }
      Status status;
      bool encodes = false;
      if (variant) {
        cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(fp8_->native_stream()),
                                      variant);
        const Result<bool> said = launcher.encodes_outputs(calls);
        ASSERT_OK(said);
        encodes = *said;
        EXPECT_EQ(encodes, name_of(*variant) != "fp8 64");
        for (const LinearCall& call : encoded) ASSERT_OK(launcher.add(call));
        status = launcher.flush();
      } else {
        encodes = *dispatched;
        EXPECT_TRUE(encodes || tokens < 2000);
        status = fp8_->ops().linear(tokens, encoded);
      }
      ASSERT_EQ(status.code(), encodes ? StatusCode::kOk : StatusCode::kUnsupported) << status.to_string();
      if (!encodes) continue;
      ++encoding;
      ASSERT_OK(fp8_->synchronize());
      const std::vector<std::uint8_t> found_codes = out_codes.download();
      const std::vector<float> found_scales = out_scales.download();
      std::vector<float> block(kEncodedBlockValues);
      for (std::int32_t t = 0; t < tokens; ++t) {
        for (std::int64_t b = 0; b < kWidth / kEncodedBlockValues; ++b) {
          const std::int64_t column = b * kEncodedBlockValues - kFirstColumn;
          const std::uint8_t* of_block = found_codes.data() + t * kWidth + b * kEncodedBlockValues;
          const float scale = found_scales[static_cast<std::size_t>(b * stride + t)];
          if (column < 0 || column >= kGroups * kOut) {
            ASSERT_EQ(scale, -3.0F);
            ASSERT_TRUE(std::all_of(of_block, of_block + block.size(), [](auto code) { return code == kPoisonCode; }));
            continue;
          }
          for (std::size_t i = 0; i < block.size(); ++i) {
            block[i] = to_float(expected[static_cast<std::size_t>(t * kGroups * kOut + column) + i]);
          }
          round_activation_fp8(block.data(), block.size());
          for (std::size_t i = 0; i < block.size(); ++i) {
            const float value = decode_e4m3(of_block[i]) * scale;
            ASSERT_TRUE(value == block[i] || (std::isnan(value) && std::isnan(block[i])))
                << "token " << t << " output " << column + static_cast<std::int64_t>(i) << ": " << value << " for "
                << block[i];
          }
        }
      }
      for (std::int64_t b = 0; b < kWidth / kEncodedBlockValues; ++b) {
        for (std::int32_t t = tokens; t < stride; ++t) {
          ASSERT_EQ(found_scales[static_cast<std::size_t>(b * stride + t)], -3.0F) << "block " << b << " place " << t;
        }
      }
    }
  }
  EXPECT_GE(encoding, 11);
}

// A few tokens' kernel rounds itself, so that calls with inputs of their own are one launch: the bytes of each alone.
TEST_F(LinearFp8GpuTest, FewTokensRoundEveryCallsInput) {
  constexpr std::int64_t kOut = 128;
  constexpr std::int64_t kIn = 1024;
  constexpr std::int64_t kGroups = 18;
  const Weight weight(*fp8_, kOut, kIn);
  for (const std::int32_t tokens : {1, 2, 3}) {
    const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * kGroups * kIn));
    std::vector<std::vector<float>> found;
    for (const bool together : {true, false}) {
      const auto count = static_cast<std::size_t>(tokens * kGroups * kOut);
      const DeviceArray<float> y(*fp8_, std::vector<float>(count, std::nanf("")));
      std::vector<LinearCall> calls;
      for (std::int64_t g = 0; g < kGroups; ++g) {
        calls.push_back({x.data() + g * kIn, kGroups * kIn, weight.packed.get(), y.data() + g * kOut, kGroups * kOut,
                         OutputType::kF32});
      }
      const std::size_t each = together ? calls.size() : 1;
      for (std::size_t first = 0; first < calls.size(); first += each) {
        ASSERT_OK(fp8_->ops().linear(tokens, std::span(calls).subspan(first, each)));
      }
      ASSERT_OK(fp8_->synchronize());
      found.push_back(y.download());
    }
    EXPECT_EQ(std::memcmp(found[0].data(), found[1].data(), found[0].size() * sizeof(float)), 0) << "T " << tokens;
  }
}

TEST_F(LinearFp8GpuTest, EncodedInputsThatAreRefused) {
  constexpr std::int64_t kOut = 192;
  constexpr std::int64_t kIn = 1024;
  constexpr std::int32_t kTokens = 8;
  const Weight weight(*fp8_, kOut, kIn);
  TestMatrix values;
  fill_matrix(values, WeightEncoding::kBf16, ActivationRounding::kNone, kOut, kIn, 7);
  const std::unique_ptr<PackedLinear> exact = pack(*fp8_, values.host);
  const std::int32_t stride = encoded_scale_stride(kTokens);
  const DeviceArray<std::uint8_t> codes(*fp8_, std::vector<std::uint8_t>(kTokens * 2 * kIn + 16));
  const DeviceArray<float> scales(*fp8_, std::vector<float>(static_cast<std::size_t>(2 * kIn / 128 * stride) + 4));
  const DeviceArray<float> y(*fp8_, std::vector<float>(kTokens * kOut));
  const EncodedRows rows{codes.data(), 2 * kIn, scales.data(), stride};
  const auto status = [&](std::int32_t tokens, const PackedLinear& of, const EncodedRows& encoded,
                          std::int64_t column) {
    LinearCall call{.weight = &of, .y = y.data(), .y_stride = kOut, .output = OutputType::kF32};
    call.encoded = encoded;
    call.encoded_column = column;
    return fp8_->ops().linear(tokens, std::span(&call, 1));
  };
  const auto expect_refused = [](const Status& found, const char* what) {
    EXPECT_EQ(found.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.message().find(what), std::string::npos) << found.to_string();
  };
  EXPECT_OK(status(kTokens, *weight.packed, rows, kIn));
  expect_refused(status(2, *weight.packed, rows, 0), "takes_encoded_rows");
  expect_refused(status(kTokens, *exact, rows, 0), "takes_encoded_rows");
  expect_refused(status(kTokens, *weight.packed, rows, 64), "encoded_column");
  expect_refused(status(kTokens, *weight.packed, rows, kIn + 128), "encoded_column");
  expect_refused(status(kTokens, *weight.packed, rows, -128), "encoded_column");
  EncodedRows other = rows;
  other.scale_stride -= 4;
  expect_refused(status(kTokens, *weight.packed, other, 0), "encoded.scale_stride");
  other = rows;
  other.codes += 8;
  expect_refused(status(kTokens, *weight.packed, other, 0), "encoded.codes");
  other = rows;
  other.scales += 1;
  expect_refused(status(kTokens, *weight.packed, other, 0), "encoded.scales");
  other = rows;
  other.width -= 64;
  expect_refused(status(kTokens, *weight.packed, other, 0), "encoded.width");
  EXPECT_OK(fp8_->synchronize());
}

// Rows of y that are no whole units, and an input behind another stride: of what the dispatch takes, and of every
// kernel for many tokens, which it takes for larger shapes only.
TEST_F(LinearFp8GpuTest, OutputsMayLieAnywhere) {
  std::vector<std::optional<cuda::LinearVariant>> variants{std::nullopt};
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    if (variant.family == cuda::LinearFamily::kFp8) variants.emplace_back(variant);
  }
  ASSERT_GT(variants.size(), 1U);
  for (const std::int32_t tokens : {3, 60, 250}) {
    for (const auto& variant : variants) {
      SCOPED_TRACE("T " + std::to_string(tokens) + " " + (variant ? name_of(*variant) : "dispatched"));
      expect_anywhere<bf16>(tokens, OutputType::kBf16, variant, bf16{0x7eef});
      expect_anywhere<float>(tokens, OutputType::kF32, variant, 3.0e38F);
    }
  }
}

// NaN and infinities reach the outputs of their own row alone.
TEST_F(LinearFp8GpuTest, NonFiniteInputsStayInTheirRow) {
  constexpr std::int64_t kOut = 128;
  constexpr std::int64_t kIn = 1024;
  const Weight weight(*fp8_, kOut, kIn);
  for (const std::int32_t tokens : {4, 40, 200}) {
    std::vector<bf16> values = random_inputs(tokens * kIn);
    const DeviceArray<bf16> clean(*fp8_, values);
    values[static_cast<std::size_t>(1 * kIn + 5)] = {0x7fc0};    // NaN
    values[static_cast<std::size_t>(2 * kIn + 700)] = {0x7f80};  // infinity
    const DeviceArray<bf16> x(*fp8_, values);
    const std::vector<float> expected = linear(*fp8_, *weight.packed, clean.data(), tokens);
    const std::vector<float> found = linear(*fp8_, *weight.packed, x.data(), tokens);
    for (std::int32_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<std::size_t>(t * kOut);
      if (t != 1 && t != 2) {
        EXPECT_EQ(std::memcmp(found.data() + at, expected.data() + at, kOut * sizeof(float)), 0) << "row " << t;
        continue;
      }
      for (std::size_t n = 0; n < kOut; ++n) EXPECT_TRUE(std::isnan(found[at + n])) << "row " << t << " " << n;
    }
  }
}

// Behind a norm, in one launch less.
TEST_F(LinearFp8GpuTest, NormsInFrontGiveTheSameBytes) {
  constexpr std::int64_t kOut = 320;
  for (const std::int64_t width : {1024, 1536, 7168}) {
    const Weight first(*fp8_, kOut, width, 91);
    const Weight second(*fp8_, kOut, width, 92);
    const DeviceArray<bf16> norm_weight(*fp8_, random_inputs(width, 3));
    for (const std::int32_t tokens : {1, 2, 4, 5, 64, 65, 300}) {
      const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * width));
      const DeviceArray<bf16> y(*fp8_, std::vector<bf16>(static_cast<std::size_t>(tokens * width)));
      const RmsNormParams norm{.tokens = tokens,
                               .width = static_cast<std::int32_t>(width),
                               .x = x.data(),
                               .weight = norm_weight.data(),
                               .eps = 1e-6F,
                               .y = y.data()};
      std::vector<std::vector<float>> found;
      for (const bool together : {false, true}) {
        const std::vector<float> poison(static_cast<std::size_t>(tokens * kOut), std::nanf(""));
        const DeviceArray<float> a(*fp8_, poison);
        const DeviceArray<float> b(*fp8_, poison);
        const LinearCall calls[] = {{y.data(), width, first.packed.get(), a.data(), kOut, OutputType::kF32},
                                    {y.data(), width, second.packed.get(), b.data(), kOut, OutputType::kF32}};
        if (together) {
          ASSERT_OK(fp8_->ops().normed_linear(norm, calls));
        } else {
          ASSERT_OK(fp8_->row_ops().rms_norm(norm));
          ASSERT_OK(fp8_->ops().linear(tokens, calls));
        }
        ASSERT_OK(fp8_->synchronize());
        found.push_back(a.download());
        const std::vector<float> more = b.download();
        found.back().insert(found.back().end(), more.begin(), more.end());
      }
      EXPECT_EQ(std::memcmp(found[0].data(), found[1].data(), found[0].size() * sizeof(float)), 0)
          << "width " << width << " T " << tokens;
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
