// Kernel families of linear layers against one another.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/linear/tile/tile_shape.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "gpu/support/linear_calls.h"
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

constexpr std::uint32_t kSeed = 92;

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

  // What every variant runs as one launch.
  struct Launch {
    std::string name;
    std::int32_t tokens;
    std::int64_t values;                                     // floats that all outputs take
    std::function<std::vector<LinearCall>(float* y)> calls;  // the launch's, with outputs in y
    std::vector<cuda::LinearVariant> certain;                // variants that must run it
  };

  // Their bytes are the first one's, which is the gemv kernel's for few tokens; what lies behind the outputs stays.
  // Variants of family `but` are left out.
  void expect_same_bytes(const Launch& launch, std::optional<cuda::LinearFamily> but = {}) {
    std::vector<float> expected;
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family == but) continue;
      SCOPED_TRACE(launch.name + " T " + std::to_string(launch.tokens) + " " + name_of(variant));
      const std::vector<float> poison(static_cast<std::size_t>(launch.values) + kBehind, std::nanf(""));
      const DeviceArray<float> y(gpu(), poison);
      ASSERT_OK(gpu().synchronize());
      cuda::LinearLauncher launcher(*device_, launch.tokens, scratch_, static_cast<cudaStream_t>(gpu().native_stream()),
                                    variant);
      const std::vector<LinearCall> calls = launch.calls(y.data());
      for (const LinearCall& call : calls) ASSERT_OK(launcher.add(call));
      if (const Status status = launcher.flush(); !status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.to_string();
        EXPECT_EQ(std::ranges::count(launch.certain, variant), 0);
        continue;
      }
      ASSERT_OK(gpu().synchronize());
      seen_.insert(name_of(variant));
      const std::vector<float> values = y.download();
      if (expected.empty()) expected = values;
      EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0);
    }
    EXPECT_FALSE(expected.empty());
  }

  // One problem. padding: of rows of y.
  void expect_same(const Weights& weights, std::int64_t out, std::int64_t in, std::int32_t tokens, OutputType type,
                   std::optional<cuda::LinearFamily> but = {}, const std::vector<bf16>& inputs = {},
                   std::int64_t padding = 0) {
    TestMatrix matrix;
    fill_matrix(matrix, weights.encoding, weights.activation, out, in, 91);
    const auto weight = pack(gpu(), matrix.host);
    const DeviceArray<bf16> x(gpu(), inputs.empty() ? random_inputs(tokens * in, kSeed) : inputs);
    const std::int64_t stride = out + padding;
    expect_same_bytes({.name = std::string(weights.name) + " [" + std::to_string(out) + ", " + std::to_string(in) + "]",
                       .tokens = tokens,
                       .values = tokens * stride,
                       .calls =
                           [&](float* y) {
                             return std::vector{LinearCall{x.data(), in, weight.get(), y, stride, type}};
                           },
                       .certain = {}},
                      but);
  }

  // Outputs of a problem behind one of `outputs` in the same launch, an odd number of row tiles, so that `variants`
  // take the last of them one by one.
  static std::int64_t outputs_of_rest(const cuda::LinearDevice& asked, const std::vector<cuda::LinearVariant>& variants,
                                      const Weights& kind, std::int64_t outputs, std::int64_t in, std::int32_t tokens) {
    const auto shape = [&](std::int64_t out) {
      return cuda::LinearShape{.outputs = out,
                               .inputs = in,
                               .tiles = cuda::tiles_of_shape(true, kind.encoding, kind.activation, out, in),
                               .rounds = kind.activation == ActivationRounding::kFp8Block128};
    };
    constexpr std::int64_t kMostTiles = 300;
    constexpr int kLeastSingles = 3;  // a pair and the odd one
    for (std::int64_t tiles = 3; tiles < kMostTiles; tiles += 2) {
      const std::array shapes{shape(outputs), shape(tiles * cuda::kRowTile)};
      const bool all = std::ranges::all_of(variants, [&](cuda::LinearVariant variant) {
        const auto plan = plan_variant(variant, asked, tokens, shapes);
        return plan.ok() && plan->single_tiles >= kLeastSingles;
      });
      if (all) return tiles * cuda::kRowTile;
    }
    return 0;
  }

  // Two problems that share their inputs and a launch, in more rounds than one; the last row tiles of the second are
  // items of their own in all variants of two row tiles a block whose clusters divide the segments.
  void expect_same_together(const Weights& kind, std::int64_t first_outputs, std::int64_t in, std::int32_t tokens) {
    const auto asked = cuda::linear_device(*device_, 65);
    ASSERT_OK(asked);
    const int segments = cuda::tile_segments(in);
    std::vector<cuda::LinearVariant> single;
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family != cuda::LinearFamily::kTile) continue;
      const cuda::TileVariant& tile = cuda::kTileVariants.at(static_cast<std::size_t>(variant.number));
      if (!tile.adds_segments && segments > 1) continue;
      if (tile.row_tiles == 2 && segments % tile.cluster_blocks == 0) single.push_back(variant);
    }
    const std::array outs{first_outputs, outputs_of_rest(*asked, single, kind, first_outputs, in, tokens)};
    ASSERT_GT(outs[1], 0) << "no shape leaves single row tiles to every variant";
    std::array<TestMatrix, 2> matrices;
    std::array<std::unique_ptr<PackedLinear>, 2> weights;
    for (std::size_t i = 0; i < 2; ++i) {
      fill_matrix(matrices[i], kind.encoding, kind.activation, outs[i], in, 94 + static_cast<std::uint32_t>(i));
      weights[i] = pack(gpu(), matrices[i].host);
    }
    const DeviceArray<bf16> x(gpu(), random_inputs(tokens * in, kSeed));
    for (const OutputType last : {OutputType::kF32, OutputType::kBf16}) {
      const auto calls = [&](float* y) {
        return std::vector{LinearCall{x.data(), in, weights[0].get(), y, outs[0], OutputType::kBf16},
                           LinearCall{x.data(), in, weights[1].get(), y + tokens * outs[0], outs[1], last}};
      };
      expect_same_bytes({.name = std::string(kind.name) + " [" + std::to_string(outs[0]) + " + " +
                                 std::to_string(outs[1]) + ", " + std::to_string(in) + "]" +
                                 (last == OutputType::kF32 ? " float" : " bf16"),
                         .tokens = tokens,
                         .values = tokens * (outs[0] + outs[1]),
                         .calls = calls,
                         .certain = single});
    }
  }

  // Five problems that share a launch and their inputs, with bytes between the rows.
  void expect_same_of_many(std::int64_t in) {
    constexpr std::int64_t kPadding = 8;
    constexpr std::int64_t kOuts[] = {1984, 1344, 2752, 832, 5568};
    static_assert(std::size(kOuts) > cuda::kMaxBoxedOutputs);
    const int segments = cuda::tile_segments(in);
    std::vector<cuda::LinearVariant> certain;  // those that box outputs
    for (const cuda::LinearVariant variant : cuda::linear_variants()) {
      if (variant.family != cuda::LinearFamily::kTile) continue;
      const cuda::TileVariant& tile = cuda::kTileVariants.at(static_cast<std::size_t>(variant.number));
      if (tile.parts > 1 || segments % tile.cluster_blocks != 0) continue;
      if (tile.adds_segments || segments == 1) certain.push_back(variant);
    }
    for (const Weights& kind : {kWeights[0], kWeights[1]}) {
      std::vector<std::unique_ptr<PackedLinear>> weights;
      std::int64_t row = 0;  // values of all problems' rows of a token
      for (const std::int64_t out : kOuts) {
        TestMatrix matrix;
        fill_matrix(matrix, kind.encoding, kind.activation, out, in, 96 + static_cast<std::uint32_t>(weights.size()));
        weights.push_back(pack(gpu(), matrix.host));
        row += out + kPadding;
      }
      for (const std::int32_t tokens : {70, 200, 520, 520}) {
        const DeviceArray<bf16> x(gpu(), random_inputs(tokens * in, kSeed));
        const auto calls = [&](float* y) {
          std::vector<LinearCall> all;
          for (const auto& weight : weights) {
            const std::int64_t stride = weight->out_features() + kPadding;
            all.push_back({x.data(), in, weight.get(), y, stride, OutputType::kBf16});
            y += tokens * stride;  // twice what they take: what is behind the rows of one problem is no other's
          }
          return all;
        };
        expect_same_bytes({.name = std::string(kind.name) + ", many problems",
                           .tokens = tokens,
                           .values = tokens * row,
                           .calls = calls,
                           .certain = certain});
      }
    }
  }

  static constexpr std::size_t kBehind = 4096;  // floats behind the outputs, which nobody writes

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
    if (variant.family == cuda::LinearFamily::kPortable) continue;
    // Of the kernel of E4M3 products those that take BF16 weights.
    const bool runs = variant.family != cuda::LinearFamily::kFp8 ||
                      cuda::kFp8Variants[static_cast<std::size_t>(variant.number)].takes_values;
    EXPECT_EQ(seen_.contains(name_of(variant)), runs) << name_of(variant);
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

// Blocks of rounded inputs of every size, with zeros of both signs, in outputs of any alignment; then with NaN and
// infinities as well, which leave nothing else of their tokens.
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
      const auto expect = [&] {
        for (const OutputType type : {OutputType::kF32, OutputType::kBf16}) {
          for (const std::int64_t padding : {0, 3}) expect_same(kWeights[1], kOut, in, tokens, type, {}, x, padding);
        }
      };
      std::fill_n(&at(1, 0), in, bf16{0x8000});
      expect();
      at(2, 5) = {0x7fc0};
      at(3, in - 1) = {0xff80};
      if (tokens > 64) at(66, 130) = {0x7f80};
      expect();
    }
  }
}

// In the tile kernel of pairs of row tiles the last round has single ones. Odd numbers of row tiles: a pair of each
// problem has one. Four segments of 31 blocks of inputs, which are not equally long, in clusters of every size.
TEST_F(LinearVariants, GiveTheSameBytesTogether) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  for (const Weights& weights : {kWeights[0], kWeights[1]}) {
    for (const std::int32_t tokens : {65, 128, 300}) expect_same_together(weights, 16576, 512, tokens);
    expect_same_together(weights, 3648, 3968, 300);
    expect_same_together(weights, 3648, 1152, 300);
    EXPECT_TRUE(seen_.contains("tile 2c1") && seen_.contains("tile 2c2"));
  }
}

// More items than the tile kernel has clusters, of every size: what parts and blocks hand on takes the place of the
// item before's. With two segments a block's slots take turns from item to item.
TEST_F(LinearVariants, GiveTheSameBytesInSeveralRounds) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  for (const Weights& weights : {kWeights[0], kWeights[1]}) {
    for (const std::int64_t in : {1152, 2304, 4224}) {
      for (const std::int32_t tokens : {150, 350}) {
        for (const OutputType type : {OutputType::kF32, OutputType::kBf16})
          expect_same(weights, 4288, in, tokens, type);
      }
    }
  }
}

// More problems than the tile kernel has maps of outputs for: blocks hand boxes of some to the copy engine, and then
// store others themselves through the same memory. So few inputs that, with many tokens, boxes before are still on
// their way now and then: several times. Bytes between the rows stay.
TEST_F(LinearVariants, GiveTheSameBytesForManyProblems) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  expect_same_of_many(128);
  expect_same_of_many(1152);  // pairs of blocks too
}

// The same with few launches, for tools that follow every access. In the prefill kernel one lane of a warp arrives for
// all of them behind __syncwarp(), which racecheck does not take for the other lanes' arrival: there it gets inputs of
// which the ring holds all stages.
TEST_F(LinearVariants, FewTileVariants) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  expect_same(kWeights[2], 192, 2304, 100, OutputType::kF32, cuda::LinearFamily::kPrefill);
  expect_same(kWeights[2], 192, 384, 100, OutputType::kF32);
}
TEST_F(LinearVariants, FewRounds) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  expect_same(kWeights[1], 8512, 2304, 65, OutputType::kBf16, cuda::LinearFamily::kPrefill);
}
TEST_F(LinearVariants, FewSingleRowTiles) {
  if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
  expect_same_together(kWeights[1], 16576, 128, 65);
}

}  // namespace
}  // namespace dsv4rt::test
