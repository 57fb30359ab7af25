// Linears of LinearPrecision::kFp8: the same bytes from every kernel and for every number of tokens, as far from the
// exact ones as sums of about 14 bits are.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
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

#include "backend/cuda/kernels/linear/linear_costs.h"
#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"
#include "backend/row_ops.h"
#include "gpu/support/fp8_products.h"
#include "support/expect_ok.h"

namespace dsv4rt::test {
namespace {

class LinearFp8GpuTest : public Fp8ProductsGpuTest {
 protected:
  // FP32 outputs of the first `tokens` rows of x.
  static std::vector<float> linear(Backend& backend, const PackedLinear& weight, const bf16* x, std::int32_t tokens) {
    const std::int64_t out = weight.out_features();
    const DeviceArray<float> y(backend, std::vector<float>(static_cast<std::size_t>(tokens * out), std::nanf("")));
    const LinearCall call{x, weight.in_features(), &weight, y.data(), out, OutputType::kF32};
    EXPECT_OK(backend.ops().linear(tokens, std::span(&call, 1)));
    EXPECT_OK(backend.synchronize());
    return y.download();
  }

  // Every variant that runs the shape and is `taken`; their bytes are the first one's.
  void expect_same(
      std::int64_t out, std::int64_t in, std::int32_t tokens, OutputType type,
      const std::function<bool(cuda::LinearVariant)>& taken = [](cuda::LinearVariant) { return true; }) {
    const Weight weight(*fp8_, out, in);
    const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * in));
    std::vector<float> expected;
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (!taken(variant)) continue;
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

  // Weights of one input, by turns FP8 and BF16.
  struct BothKinds {
    std::int64_t in;
    std::int32_t tokens;
    std::vector<std::int64_t> outs;
  };
  // Every variant that runs them in one launch, and what the dispatch makes of them; their bytes are those of a launch
  // each.
  void expect_same_of_both(const BothKinds& c, OutputType type) {
    const DeviceArray<bf16> x(*fp8_, random_inputs(c.tokens * c.in));
    std::vector<std::unique_ptr<TestMatrix>> matrices;
    std::vector<std::unique_ptr<PackedLinear>> weights;
    for (std::size_t i = 0; i < c.outs.size(); ++i) {
      matrices.push_back(std::make_unique<TestMatrix>());
      const bool values = i % 2 == 1;
      fill_matrix(*matrices.back(), values ? WeightEncoding::kBf16 : WeightEncoding::kFp8Block128,
                  values ? ActivationRounding::kNone : kRounded, c.outs[i], c.in, static_cast<std::uint32_t>(i));
      weights.push_back(pack(*fp8_, matrices.back()->host));
    }
    // Empty where the variant does not run them.
    const auto run = [&](std::optional<cuda::LinearVariant> variant, bool together) {
      std::vector<std::vector<float>> found;
      std::vector<std::unique_ptr<DeviceArray<float>>> outputs;
      std::vector<LinearCall> calls;
      for (std::size_t i = 0; i < c.outs.size(); ++i) {
        const auto count = static_cast<std::size_t>(c.tokens * c.outs[i]);
        outputs.push_back(std::make_unique<DeviceArray<float>>(*fp8_, std::vector<float>(count, std::nanf(""))));
        calls.push_back({x.data(), c.in, weights[i].get(), outputs[i]->data(), c.outs[i], type});
      }
      EXPECT_OK(fp8_->synchronize());
      cuda::LinearLauncher launcher(*device_, c.tokens, scratch_, static_cast<cudaStream_t>(fp8_->native_stream()),
                                    variant);
      Status status;
      for (const LinearCall& call : calls) {
        if (status.ok()) status = launcher.add(call);
        if (status.ok() && !together) status = launcher.flush();
      }
      if (status.ok()) status = launcher.flush();
      EXPECT_OK(fp8_->synchronize());
      if (!status.ok()) {
        EXPECT_TRUE(variant && status.code() == StatusCode::kUnsupported) << status.to_string();
        return found;
      }
      for (const auto& output : outputs) found.push_back(output->download());
      return found;
    };
    const auto expected = run(std::nullopt, false);
    ASSERT_EQ(expected.size(), c.outs.size());
    const auto expect_as_each = [&](std::optional<cuda::LinearVariant> variant) {
      const auto found = run(variant, true);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(std::memcmp(found[i].data(), expected[i].data(), found[i].size() * sizeof(float)), 0)
            << "[" << c.outs[i] << ", " << c.in << "] T " << c.tokens << " "
            << (variant ? name_of(*variant) : "dispatched") << " weight " << i;
      }
      if (variant && !found.empty()) seen_.insert(name_of(*variant));
    };
    expect_as_each(std::nullopt);
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family == cuda::LinearFamily::kFp8 || variant.family == cuda::LinearFamily::kSplitK) {
        expect_as_each(variant);
      }
    }
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
  for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) {
    expect_same(4288, 1152, 350, type);  // clusters that go on with other items, which begin in either of two slots
  }
  expect_same(128, 16384, 2, OutputType::kF32);  // long segments, which the dispatch does not leave to gemv
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

// The last row tiles of a launch's last weight, taken one by one in a last round of pairs: with rows left over, behind
// another weight, of one and several segments and tiles of tokens, whose inputs come as codes from a column on.
TEST_F(LinearFp8GpuTest, LastRoundsOfSingleRowTiles) {
  constexpr std::int64_t kFirstOut = 192;
  constexpr std::int64_t kColumn = 256;
  constexpr int kLeastSingles = 3;  // a pair and the odd one
  const cuda::LinearVariant variant = cuda::fp8_of(128);
  const auto asked = cuda::linear_device(*device_, 65);
  ASSERT_OK(asked);
  for (const auto& [in, tokens] : {std::pair<std::int64_t, std::int32_t>{384, 100}, {384, 200}, {1152, 100}}) {
    SCOPED_TRACE(std::to_string(in) + " inputs T " + std::to_string(tokens));
    const auto shape = [&](std::int64_t out) {
      return cuda::LinearShape{.outputs = out, .inputs = in, .tiles = cuda::TileKind::kFp8Products, .rounds = true};
    };
    std::int64_t tiles = 1;
    for (int singles = 0; singles < kLeastSingles;) {
      tiles += 2;
      ASSERT_LT(tiles, 600) << "no shape leaves single row tiles";
      const std::array shapes{shape(kFirstOut), shape(tiles * cuda::kRowTile)};
      const auto plan = plan_variant(variant, *asked, tokens, shapes);
      ASSERT_OK(plan);
      singles = plan->single_tiles;
    }
    const std::int64_t outs[] = {kFirstOut, tiles * cuda::kRowTile};
    const Weight weights[] = {Weight(*fp8_, outs[0], in, 5), Weight(*fp8_, outs[1], in, 6)};
    const std::int64_t width = kColumn + in;
    const DeviceArray<bf16> x(*fp8_, random_inputs(tokens * width));
    const EncodedInputs inputs(*fp8_, x, width, tokens, encoded_scale_stride(tokens));
    for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) {
      std::vector<std::vector<float>> found;
      for (const bool forced : {true, false}) {
        const DeviceArray<float> y(
            *fp8_, std::vector<float>(static_cast<std::size_t>(tokens * (outs[0] + outs[1])), std::nanf("")));
        ASSERT_OK(fp8_->synchronize());
        cuda::LinearLauncher launcher(*device_, tokens, scratch_, static_cast<cudaStream_t>(fp8_->native_stream()),
                                      forced ? std::optional(variant) : std::nullopt);
        std::vector<LinearCall> calls;
        for (int i = 0; i < 2; ++i) {
          float* const to = y.data() + (i > 0 ? tokens * outs[0] : 0);
          calls.push_back({.weight = weights[i].packed.get(), .y = to, .y_stride = outs[i], .output = type});
          calls.back().encoded = inputs.rows;
          calls.back().encoded_column = kColumn;
        }
        for (const LinearCall& call : calls) {
          ASSERT_OK(launcher.add(call));
          if (!forced) {
            ASSERT_OK(launcher.flush());  // each by itself
          }
        }
        ASSERT_OK(launcher.flush());
        ASSERT_OK(fp8_->synchronize());
        found.push_back(y.download());
      }
      EXPECT_EQ(std::memcmp(found[0].data(), found[1].data(), found[0].size() * sizeof(float)), 0);
    }
  }
}

// BF16 weights beside codes of the same input, in one launch of every variant that takes both: each gives the bytes of
// a launch of its own. Odd row tiles, values that leave as FP32 and as BF16, of one segment and several, and clusters
// that go on from weights of one kind to the other.
TEST_F(LinearFp8GpuTest, LaunchesOfBothKindsGiveTheSameBytes) {
  const BothKinds cases[] = {{384, 70, {192, 64, 128, 320}},
                             {2304, 200, {320, 448, 64, 64}},
                             {7168, 130, {192, 320, 256}},
                             {1152, 350, {2048, 2112, 192, 64}},
                             {4096, 256, {1024, 1024, 512, 1088}},
                             {4096, 600, {1024, 2048, 512, 576}},
                             {2048, 150, {64, 64, 64, 64, 64, 128, 64, 64, 64, 64}}};  // more than a launch has
  for (const BothKinds& c : cases) {
    for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) expect_same_of_both(c, type);
  }
  for (const cuda::LinearVariant variant : cuda::linear_variants()) {
    const auto number = static_cast<std::size_t>(variant.number);
    bool takes_both = false;
    if (variant.family == cuda::LinearFamily::kSplitK) takes_both = cuda::kSplitKVariants[number].takes_codes;
    if (variant.family == cuda::LinearFamily::kFp8) takes_both = cuda::kFp8Variants[number].takes_values;
    EXPECT_EQ(seen_.contains(name_of(variant)), takes_both) << name_of(variant);
  }
}

// The same with few launches, for tools that follow every access. In the kernel for many tokens one lane of a warp
// arrives for all of them behind __syncwarp(), which racecheck does not take for the other lanes' arrival: there it
// gets inputs of which the ring holds all stages.
TEST_F(LinearFp8GpuTest, FewVariants) {
  const auto others = [](cuda::LinearVariant variant) { return variant.family != cuda::LinearFamily::kFp8; };
  const auto clusters = [&](cuda::LinearVariant variant) {
    if (others(variant)) return true;
    const cuda::Fp8Variant& fp8 = cuda::kFp8Variants[static_cast<std::size_t>(variant.number)];
    return fp8.cluster_blocks > 1 && fp8.tokens == 128;
  };
  expect_same(192, 2304, 3, OutputType::kF32, others);
  expect_same(192, 2304, 100, OutputType::kBf16, others);
  expect_same(192, 384, 100, OutputType::kBf16);
  expect_same(192, 1152, 100, OutputType::kBf16, clusters);  // two segments, of four stages and five
  expect_same_of_both({256, 136, {192, 64}}, OutputType::kF32);
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
