// A rank's parts of the matrices that ranks share are the bytes of the checkpoint.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/attention_loader.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "checkpoint/weights_digest.h"
#include "support/expect_ok.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt::test {
namespace {

// wo_b has 512 columns a group of 4; rows and columns of a rank of 4 are whole blocks of scales.
ModelConfig config_of_ranks() {
  ModelConfig config = ModelConfig::from_file(std::string(DSV4RT_SOURCE_DIR) + "/configs/tiny.json").value();
  config.num_hidden_layers = 2;
  config.compress_ratios.resize(2);
  config.num_attention_heads = 16;
  config.o_groups = 4;
  config.o_lora_rank = 256;
  config.hidden_size = 4224;  // wo_b is read in more than one band
  return config;
}

// Bytes of rows [first, first + rows) and of each `count` bytes from `from`.
std::vector<std::byte> cut(std::span<const std::byte> all, std::size_t row_bytes, std::size_t first, std::size_t rows,
                           std::size_t from, std::size_t count) {
  std::vector<std::byte> part;
  for (std::size_t row = first; row < first + rows; ++row) {
    const auto bytes = all.subspan(row * row_bytes + from, count);
    part.insert(part.end(), bytes.begin(), bytes.end());
  }
  return part;
}

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

struct Encoding {
  WeightEncoding encoding;
  bool scales_as_f32;
};

class ShardedLoader : public testing::TestWithParam<Encoding> {
 protected:
  void SetUp() override {
    const LayerSchedule schedule = LayerSchedule::create(config_).value();
    layers_.assign(schedule.layers().begin(), schedule.layers().end());
    ASSERT_OK(write_synthetic_checkpoint(directory_.path(), config_, layers_,
                                         {.encoding = GetParam().encoding, .seed = 3, .max_shard_bytes = 0}));
    if (GetParam().scales_as_f32) write_scales_as_f32();
  }

  void write_scales_as_f32() {
    const auto checkpoint = Checkpoint::open(directory_.path());
    ASSERT_OK(checkpoint);
    std::vector<TestTensor> tensors = read_tensors(*checkpoint);
    for (TestTensor& tensor : tensors) {
      if (tensor.declaration.dtype != TensorDtype::kF8E8M0) continue;
      std::string wide;
      for (const char code : tensor.bytes) {
        const std::uint32_t bits = std::uint32_t{static_cast<unsigned char>(code)} << 23;
        wide.append(reinterpret_cast<const char*>(&bits), sizeof(bits));
      }
      tensor.declaration.dtype = TensorDtype::kF32;
      tensor.bytes = wide;
    }
    write_tensors(directory_ / "model.safetensors", tensors);
  }

  [[nodiscard]] Checkpoint open() const { return Checkpoint::open(directory_.path()).value(); }

  const ModelConfig config_ = config_of_ranks();
  const TempDirectory directory_;
  std::vector<LayerSpec> layers_;
};

// A part with its scales, and the matrix that it was taken from.
void expect_part(const HostLinear& part, const HostLinear& whole, const TensorShard& shard, bool columns) {
  SCOPED_TRACE(part.name);
  const auto ranks = static_cast<std::size_t>(shard.size);
  const auto rank = static_cast<std::size_t>(shard.rank);
  const auto rows = static_cast<std::size_t>(whole.out_features);
  ASSERT_EQ(part.first_row, 0);
  EXPECT_EQ(part.out_features * (columns ? 1 : shard.size), whole.out_features);
  EXPECT_EQ(part.in_features * (columns ? shard.size : 1), whole.in_features);
  EXPECT_EQ(part.encoding, whole.encoding);
  EXPECT_EQ(part.activation, whole.activation);
  EXPECT_EQ(part.global_scale, whole.global_scale);
  const auto expect_cut = [&](std::span<const std::byte> got, std::span<const std::byte> all, std::size_t block_rows) {
    const std::size_t all_rows = rows / block_rows;
    const std::size_t row_bytes = all.size() / all_rows;
    const auto expected = columns ? cut(all, row_bytes, 0, all_rows, row_bytes / ranks * rank, row_bytes / ranks)
                                  : cut(all, row_bytes, all_rows / ranks * rank, all_rows / ranks, 0, row_bytes);
    EXPECT_TRUE(copy_of(got) == expected);
  };
  expect_cut(part.weight, whole.weight, 1);
  if (!whole.scale.empty()) {
    expect_cut(part.scale, whole.scale, whole.encoding == WeightEncoding::kFp8Block128 ? 128 : 1);
  }
}

TEST_P(ShardedLoader, GivesEveryRankItsRowsAndColumns) {
  const Checkpoint whole_file = open();
  const auto whole = load_attention_weights(whole_file, config_, layers_);
  ASSERT_OK(whole);
  const Sha256::Digest digest = sampled_weights_digest(*whole);
  for (const std::int32_t size : {2, 4}) {
    for (std::int32_t rank = 0; rank < size; ++rank) {
      SCOPED_TRACE("rank " + std::to_string(rank) + " of " + std::to_string(size));
      const TensorShard shard{.rank = rank, .size = size};
      const Checkpoint file = open();
      const auto parts = load_attention_weights(file, config_, layers_, NonFinite::kRefused, shard);
      ASSERT_OK(parts);
      for (std::size_t layer = 0; layer < parts->size(); ++layer) {
        const HostAttentionWeights& part = (*parts)[layer];
        const HostAttentionWeights& all = (*whole)[layer];
        expect_part(part.wq_b, all.wq_b, shard, false);
        expect_part(part.wo_a, all.wo_a, shard, false);
        expect_part(part.wo_b, all.wo_b, shard, true);
        EXPECT_TRUE(copy_of(part.wq_a.weight) == copy_of(all.wq_a.weight));
        EXPECT_TRUE(copy_of(part.wkv.weight) == copy_of(all.wkv.weight));
        EXPECT_FALSE(part.wq_a.stored || part.wkv.stored || all.wo_b.stored);
        EXPECT_EQ(part.attn_sink.size(), 16U);
        drop_matrices(file, part);
      }
      // Snapshots and prefixes of ranks are those of the checkpoint.
      const Checkpoint again = open();
      EXPECT_EQ(sampled_weights_digest(*load_attention_weights(again, config_, layers_, NonFinite::kRefused, shard)),
                digest);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, ShardedLoader,
                         testing::Values(Encoding{WeightEncoding::kFp8Block128, false},
                                         Encoding{WeightEncoding::kFp8Block128, true},
                                         Encoding{WeightEncoding::kBf16, false},
                                         Encoding{WeightEncoding::kNvfp4, false}));

TEST(TensorShardTest, DealsOutHeadsAndGroups) {
  ModelConfig config = config_of_ranks();
  const auto part = shard_config(config, {.rank = 3, .size = 4});
  ASSERT_OK(part);
  EXPECT_EQ(part->num_attention_heads, 4);
  EXPECT_EQ(part->o_groups, 1);
  EXPECT_EQ(part->hidden_size, config.hidden_size);
  EXPECT_EQ((TensorShard{.rank = 3, .size = 4}.first(16)), 12);

  const auto refused = [&](TensorShard shard, const char* text) {
    const Status status = shard_config(config, shard).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  refused({.rank = 0, .size = 8}, "o_groups = 4 over 8 ranks");
  refused({.rank = 0, .size = 3}, "num_attention_heads = 16 over 3 ranks");
  refused({.rank = 4, .size = 4}, "rank 4 of 4");
  refused({.rank = -1, .size = 4}, "rank -1 of 4");
  refused({.rank = 0, .size = 0}, "rank 0 of 0");
}

}  // namespace
}  // namespace dsv4rt::test
