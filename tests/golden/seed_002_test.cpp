// Seed 002: the flush is part of every step and gated on the device. The seed's version asked the host
// whether any block is full, which cannot be captured in a graph; here the calls never depend on it.
#include <gtest/gtest.h>

#include "seed_compressor.h"
#include "support/layer_rig.h"
#include "support/recording_ops.h"

namespace dsv4rt::test {
namespace {

// Layers of tiny-bf16: 0 is heavily compressed, 1 sparse.
class Seed002 : public testing::TestWithParam<int> {
 protected:
  static constexpr CacheLimits kLimits{
      .max_sequences = 1, .max_context_tokens = 512, .max_step_tokens = 256, .pool_tokens = 0};
};

TEST_P(Seed002, TheSameCallsWhetherOrNotABlockCompletes) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16", GetParam(), 1);
  LayerRig layer(golden, GetParam(), kLimits, Profile::seed());
  const SequenceId sequence = layer.rig().create_sequence();
  std::vector<std::string> first_calls;
  std::vector<Bf16Bits> out(static_cast<std::size_t>(golden.hidden()));
  int completed = 0;
  for (std::int64_t position = 0; position < 130; ++position) {
    const StepEntry entry{sequence, 1};
    const StepView step = layer.rig().begin({&entry, 1});
    RecordingOps ops(&layer.rig().ops());
    ASSERT_OK(layer.forward(ops, step, golden.inputs[0].data() + position * golden.hidden(), out.data()));
    layer.rig().commit();
    completed += layer.rig().host_step().valid_mask[0][0];
    if (position == 0) first_calls = ops.calls;
    EXPECT_EQ(ops.calls, first_calls) << "at position " << position;
  }
  EXPECT_EQ(completed, 130 / golden.config.compress_ratios[static_cast<std::size_t>(GetParam())]);
}

TEST_P(Seed002, OnlyTheDevicesMaskDecides) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16", GetParam(), 1);
  for (const bool masked : {true, false}) {
    LayerRig layer(golden, GetParam(), kLimits, Profile::seed());
    const SequenceId sequence = layer.rig().create_sequence();
    std::vector<std::vector<std::byte>> before;
    const int pools = static_cast<int>(layer.rig().layout().pools().size());
    for (int pool = 0; pool < pools; ++pool) {
      layer.rig().fill_pool(pool, std::byte{0x5a});
      before.push_back(layer.rig().pool_bytes(pool));
    }
    // 128 tokens complete blocks of either ratio; the host's own bookkeeping is the same in both runs.
    const StepEntry entry{sequence, 128};
    const StepView step = layer.rig().begin({&entry, 1}, {}, masked);
    RecordingOps ops(&layer.rig().ops());
    std::vector<Bf16Bits> out(static_cast<std::size_t>(128 * golden.hidden()));
    ASSERT_OK(layer.forward(ops, step, golden.inputs[0].data(), out.data()));
    for (int pool = 0; pool < pools; ++pool) {
      EXPECT_EQ(layer.rig().pool_bytes(pool) == before[static_cast<std::size_t>(pool)], masked) << "pool " << pool;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TinyBf16Layers, Seed002, testing::Values(0, 1),
                         [](const auto& info) { return info.param == 0 ? "HeavilyCompressed" : "Sparse"; });

// "FP8 row error <= 3.6 % of the row's maximum": one scale for 448 values, and half a step of E4M3 below
// 448 is 16. Values of the RoPE part are not quantized at all.
TEST(Seed002Rows, Fp8RowsKeepTheirBoundAndTheirRotatedPart) {
  SeedCompressor exact(RowFormat::kBf16, IndexKeyFormat::kBf16);
  exact.append_all(64);
  SeedCompressor seed(RowFormat::kFp8Row, IndexKeyFormat::kNvfp4);
  seed.append_all(64);
  for (const auto& [ours, reference] : {std::pair{&seed.csa(), &exact.csa()}, std::pair{&seed.hca(), &exact.hca()}}) {
    const std::vector<float> values = seed.rows(*ours);
    const std::vector<float> unquantized = exact.rows(*reference);
    float worst = 0;
    for (std::size_t row = 0; row < values.size(); row += kHeadDim) {
      float amax = 0;
      for (std::size_t i = row; i < row + kNopeDim; ++i) amax = std::max(amax, std::fabs(unquantized[i]));
      for (std::size_t i = row; i < row + kNopeDim; ++i) {
        const float error = std::fabs(values[i] - unquantized[i]);
        EXPECT_LE(error, 0.036F * amax);
        worst = std::max(worst, error / amax);
        // The golden entry itself may differ by more: BF16 rounds it by at most one part in 256.
        const double golden = ours->expected.values[i];
        EXPECT_LE(std::fabs(values[i] - golden), 0.036 * amax + std::fabs(golden) / 256);
      }
      for (std::size_t i = row + kNopeDim; i < row + kHeadDim; ++i) EXPECT_EQ(values[i], unquantized[i]);
    }
    EXPECT_GT(worst, 0.02F) << "quantization must be visible, or nothing was tested";
  }
}

}  // namespace
}  // namespace dsv4rt::test
