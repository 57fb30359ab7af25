#include "checkpoint/weights_digest.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace dsv4rt {
namespace {

constexpr std::size_t kLarge = 1 << 20;

struct Weights {
  std::vector<std::byte> large = std::vector<std::byte>(kLarge);
  std::vector<std::byte> small = std::vector<std::byte>(100);
  std::vector<float> sink = {1, 2, 3};

  [[nodiscard]] Sha256::Digest digest() const {
    HostAttentionWeights layer{};
    layer.spec.id = LayerId(3);
    layer.attn_sink = sink;
    layer.wq_a.name = "wq_a";
    layer.wq_a.weight = large;
    layer.wkv.weight = small;
    return sampled_weights_digest({&layer, 1});
  }
};

TEST(WeightsDigest, EveryByteOfSmallTensorsCounts) {
  Weights weights;
  const Sha256::Digest before = weights.digest();
  EXPECT_EQ(weights.digest(), before);
  for (std::size_t i = 0; i < weights.small.size(); ++i) {
    weights.small[i] = std::byte{1};
    EXPECT_NE(weights.digest(), before) << i;
    weights.small[i] = std::byte{0};
  }
  weights.sink[2] = 4;
  EXPECT_NE(weights.digest(), before);
}

TEST(WeightsDigest, LargeTensorsAreSampledFromTheFirstToTheLastPage) {
  Weights weights;
  const Sha256::Digest before = weights.digest();
  std::size_t seen = 0;
  for (std::size_t page = 0; page < kLarge / 4096; ++page) {
    weights.large[page * 4096 + 5] = std::byte{1};
    seen += weights.digest() != before ? 1 : 0;
    weights.large[page * 4096 + 5] = std::byte{0};
  }
  EXPECT_GE(seen, 15U);
  for (const std::size_t end : {std::size_t{0}, kLarge - 1}) {
    weights.large[end] = std::byte{1};
    EXPECT_NE(weights.digest(), before);
    weights.large[end] = std::byte{0};
  }
}

// Bytes that move from one tensor to the next make another checkpoint.
TEST(WeightsDigest, TensorsAreFramed) {
  Weights weights;
  weights.large.resize(200);
  const Sha256::Digest before = weights.digest();
  weights.large.resize(199);
  weights.small.resize(101);
  EXPECT_NE(weights.digest(), before);
}

}  // namespace
}  // namespace dsv4rt
