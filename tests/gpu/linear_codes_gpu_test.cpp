// Linears of LinearPrecision::kFp8 whose inputs come as codes, or whose outputs leave so.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/kernels/linear/linear_launch.h"
#include "gpu/support/fp8_products.h"
#include "layout/codec_e4m3.h"
#include "layout/rounding.h"

namespace dsv4rt::test {
namespace {

class LinearCodesGpuTest : public Fp8ProductsGpuTest {
 protected:
  // dispatch_encodes: whether the kernel that is dispatched encodes.
  void expect_encoded_outputs(std::int32_t tokens, std::int64_t groups, std::int64_t inputs, bool& dispatch_encodes) {
    constexpr std::int64_t kOut = 384;
    constexpr std::int64_t kFirstColumn = 128;  // outputs go to a part of a row of codes
    const std::int64_t width = kFirstColumn + groups * kOut + 128;
    constexpr std::uint8_t kPoisonCode = 0x5a;
    std::vector<std::unique_ptr<Weight>> weights;
    for (std::int64_t g = 0; g < groups; ++g) {
      weights.push_back(std::make_unique<Weight>(*fp8_, kOut, inputs, static_cast<std::uint32_t>(31 + g)));
    }
    std::vector<std::optional<cuda::LinearVariant>> variants{std::nullopt};
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family == cuda::LinearFamily::kFp8) variants.emplace_back(variant);
    }
    std::vector<bf16> values = random_inputs(tokens * groups * inputs);
    values[5] = {0x7fc0};                                           // NaN: the first token's outputs
    std::fill_n(values.begin() + groups * inputs, inputs, bf16{});  // the second token's are zero, of the first group
    const DeviceArray<bf16> x(*fp8_, values);
    const std::int32_t stride = encoded_scale_stride(tokens);
    const EncodedInputs x_codes(*fp8_, x, groups * inputs, tokens, stride);
    const DeviceArray<bf16> y(*fp8_, std::vector<bf16>(static_cast<std::size_t>(tokens * groups * kOut)));
    std::vector<LinearCall> calls;
    for (std::int64_t g = 0; g < groups; ++g) {
      LinearCall call{.weight = weights[static_cast<std::size_t>(g)]->packed.get(),
                      .y = y.data() + g * kOut,
                      .y_stride = groups * kOut};
      call.encoded = x_codes.rows;
      call.encoded_column = g * inputs;
      calls.push_back(call);
    }
    ASSERT_OK(fp8_->ops().linear(tokens, calls));
    const Result<bool> dispatched = fp8_->ops().encodes_outputs(tokens, calls);
    ASSERT_OK(dispatched);
    dispatch_encodes = *dispatched;
    ASSERT_OK(fp8_->synchronize());
    const std::vector<bf16> expected = y.download();
    for (const auto& variant : variants) {
      SCOPED_TRACE("T " + std::to_string(tokens) + " " + (variant ? name_of(*variant) : "dispatched"));
      const DeviceArray<std::uint8_t> out_codes(
          *fp8_, std::vector<std::uint8_t>(static_cast<std::size_t>(tokens * width), kPoisonCode));
      const DeviceArray<float> out_scales(
          *fp8_, std::vector<float>(static_cast<std::size_t>(width / kEncodedBlockValues * stride), -3.0F));
      ASSERT_OK(fp8_->synchronize());
      std::vector<LinearCall> encoded = calls;
      for (std::size_t g = 0; g < encoded.size(); ++g) {
        encoded[g].y = nullptr;
        encoded[g].encoded_y = EncodedRows{out_codes.data(), width, out_scales.data(), stride};
        encoded[g].encoded_y_column = kFirstColumn + static_cast<std::int64_t>(g) * kOut;
      }
      Status status;
      bool encodes = false;
      if (variant) {
        cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(fp8_->native_stream()),
                                      variant);
        const Result<bool> said = launcher.encodes_outputs(calls);
        if (inputs <= 1024 && name_of(*variant).ends_with("c2")) {  // one segment
          EXPECT_EQ(said.status().code(), StatusCode::kUnsupported);
          continue;
        }
        ASSERT_OK(said);
        encodes = *said;
        EXPECT_EQ(encodes, name_of(*variant).find("r1") == std::string::npos);
        for (const LinearCall& call : encoded) ASSERT_OK(launcher.add(call));
        status = launcher.flush();
      } else {
        encodes = dispatch_encodes;
        status = fp8_->ops().linear(tokens, encoded);
      }
      ASSERT_EQ(status.code(), encodes ? StatusCode::kOk : StatusCode::kUnsupported) << status.to_string();
      if (!encodes) continue;
      ASSERT_OK(fp8_->synchronize());
      const std::vector<std::uint8_t> found_codes = out_codes.download();
      const std::vector<float> found_scales = out_scales.download();
      std::vector<float> block(kEncodedBlockValues);
      for (std::int32_t t = 0; t < tokens; ++t) {
        for (std::int64_t b = 0; b < width / kEncodedBlockValues; ++b) {
          const std::int64_t column = b * kEncodedBlockValues - kFirstColumn;
          const std::uint8_t* of_block = found_codes.data() + t * width + b * kEncodedBlockValues;
          const float scale = found_scales[static_cast<std::size_t>(b * stride + t)];
          if (column < 0 || column >= groups * kOut) {
            ASSERT_EQ(scale, -3.0F);
            ASSERT_TRUE(std::all_of(of_block, of_block + block.size(), [](auto code) { return code == kPoisonCode; }));
            continue;
          }
          for (std::size_t i = 0; i < block.size(); ++i) {
            block[i] = to_float(expected[static_cast<std::size_t>(t * groups * kOut + column) + i]);
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
      for (std::int64_t b = 0; b < width / kEncodedBlockValues; ++b) {
        for (std::int32_t t = tokens; t < stride; ++t) {
          ASSERT_EQ(found_scales[static_cast<std::size_t>(b * stride + t)], -3.0F) << "block " << b << " place " << t;
        }
      }
    }
  }
};

// Inputs that come as codes: groups of output projections, which read neighbouring columns of one row, as one launch or
// several, have the bytes of products that encode them themselves.
TEST_F(LinearCodesGpuTest, EncodedInputs) {
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
      const EncodedInputs x_codes(*fp8_, x, width, tokens, encoded_scale_stride(tokens + 5), std::nanf(""));
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
            call.encoded = x_codes.rows;
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
TEST_F(LinearCodesGpuTest, EncodedOutputs) {
  bool many_encode = false;
  for (const std::int32_t tokens : {3, 64, 130, 300, 2000}) expect_encoded_outputs(tokens, 3, 2048, many_encode);
  EXPECT_TRUE(many_encode) << "what so many tokens have leaves values";
}

// In so few launches, and stages that are filled once, that tools can follow every access.
TEST_F(LinearCodesGpuTest, FewEncodedOutputs) {
  bool encodes = false;
  expect_encoded_outputs(70, 1, 256, encodes);
}

// A few tokens' kernel rounds itself, so that calls with inputs of their own are one launch; where segments are long
// another one is behind a kernel that rounds, a launch for every input. Both times the bytes of each call alone.
TEST_F(LinearCodesGpuTest, FewTokensRoundEveryCallsInput) {
  constexpr std::int64_t kOut = 128;
  for (const auto& [groups, in] : {std::pair<std::int64_t, std::int64_t>{18, 1024}, {3, 16384}}) {
    const Weight weight(*fp8_, kOut, in);
    for (const std::int32_t tokens : {1, 2, 3}) {
      const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * groups * in));
      std::vector<std::vector<float>> found;
      for (const bool together : {true, false}) {
        const auto count = static_cast<std::size_t>(tokens * groups * kOut);
        const DeviceArray<float> y(*fp8_, std::vector<float>(count, std::nanf("")));
        std::vector<LinearCall> calls;
        for (std::int64_t g = 0; g < groups; ++g) {
          calls.push_back({x.data() + g * in, groups * in, weight.packed.get(), y.data() + g * kOut, groups * kOut,
                           OutputType::kF32});
        }
        const std::size_t each = together ? calls.size() : 1;
        for (std::size_t first = 0; first < calls.size(); first += each) {
          ASSERT_OK(fp8_->ops().linear(tokens, std::span(calls).subspan(first, each)));
        }
        ASSERT_OK(fp8_->synchronize());
        found.push_back(y.download());
      }
      EXPECT_EQ(std::memcmp(found[0].data(), found[1].data(), found[0].size() * sizeof(float)), 0)
          << "T " << tokens << " inputs " << in;
    }
  }
}

TEST_F(LinearCodesGpuTest, EncodedInputsThatAreRefused) {
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
  other = rows;
  other.scale_stride += 2;
  expect_refused(status(kTokens, *weight.packed, other, 0), "encoded.scale_stride");

  LinearCall leaves{.weight = weight.packed.get(), .y_stride = kOut};
  leaves.encoded = rows;
  leaves.encoded_y = rows;
  const auto left = [&](const LinearCall& call) { return fp8_->ops().linear(kTokens, std::span(&call, 1)); };
  // By the kernel that so few tokens have.
  EXPECT_EQ(left(leaves).code(), StatusCode::kUnsupported);
  LinearCall call = leaves;
  call.output = OutputType::kF32;
  expect_refused(left(call), "bf16");
  call = leaves;
  call.encoded_y_column = 2 * kIn - 128;
  expect_refused(left(call), "encoded_y_column");
  call = leaves;
  call.encoded_y->codes = nullptr;
  expect_refused(left(call), "encoded_y.codes");
  const DeviceArray<bf16> x(*fp8_, std::vector<bf16>(kTokens * kIn));
  call = {.x = x.data(), .x_stride = kIn, .weight = weight.packed.get(), .y_stride = kOut};
  call.encoded_y = rows;
  expect_refused(left(call), "encoded_y");
  const RmsNormParams norm{.tokens = kTokens, .width = kIn, .x = x.data(), .weight = x.data(), .y = x.data()};
  EXPECT_EQ(fp8_->ops().normed_linear(norm, std::span(&leaves, 1)).code(), StatusCode::kInvalidArgument);
  EXPECT_OK(fp8_->synchronize());
}

}  // namespace
}  // namespace dsv4rt::test
