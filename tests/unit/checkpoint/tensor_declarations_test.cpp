// Names that transformers saves, and checking a checkpoint without reading its data.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "unit/checkpoint/attention_loader_fixture.h"

namespace dsv4rt {
namespace {

// What transformers 5.23 writes for norms whatever it has loaded them from.
TEST_F(AttentionLoaderTest, NamesThatTransformersSaves) {
  struct Case {
    NamingScheme scheme;
    std::vector<std::pair<std::string, std::string>> renamed;
  };
  const Case cases[] = {
      {{.hugging_face = false, .model_prefix = true}, {{".attn.kv_norm.weight", ".attn.norm.weight"}}},
      {{.hugging_face = true, .model_prefix = true},
       {{".self_attn.kv_norm.weight", ".self_attn.norm.weight"},
        {".self_attn.compressor.kv_norm.weight", ".self_attn.compressor.norm.weight"},
        {".self_attn.compressor.indexer.kv_norm.weight", ".self_attn.compressor.indexer.norm.weight"}}},
  };
  for (const Case& c : cases) {
    start(WeightEncoding::kBf16, c.scheme);
    const std::string layer = "model.layers.1";
    const auto expected = load().value();
    for (const auto& [from, to] : c.renamed) {
      TestTensor saved = tensor(layer + from);
      saved.declaration.name = layer + to;
      tensors_.push_back(saved);
      expect_problem(StatusCode::kBadInput, layer + from, {"also " + layer + to, "one of the two"});
      remove(layer + from);
    }
    const auto loaded = load();
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    EXPECT_TRUE(check_attention_tensors(*checkpoint_, small_config(), layers_).ok());
    EXPECT_TRUE(
        std::ranges::equal((*loaded)[1].kv_norm, expected[1].kv_norm, [](bf16 a, bf16 b) { return a.bits == b.bits; }));
    remove(layer + c.renamed[0].second);
    expect_problem(StatusCode::kNotFound, layer + c.renamed[0].first, {"found nothing"});
  }
}

// The same lines as of loading, without a look at any data.
TEST_F(AttentionLoaderTest, DeclarationsAreCheckedWithoutReading) {
  start(WeightEncoding::kFp8Block128);
  ASSERT_TRUE(load().ok());
  EXPECT_TRUE(check_attention_tensors(*checkpoint_, small_config(), layers_).ok());
  remove("layers.1.attn.compressor.norm.weight");
  replace("layers.0.attn.wq_a.weight", TensorDtype::kF16, {160, 192});
  replace("layers.2.attn.wo_b.scale", TensorDtype::kF8E8M0, {1, 1});
  const Status loading = load().status();
  EXPECT_FALSE(loading.ok());
  const Status checked = check_attention_tensors(*checkpoint_, small_config(), layers_);
  EXPECT_EQ(checked.code(), loading.code());
  EXPECT_EQ(checked.message(), loading.message());
  // A layer that is complete is, whatever the others are.
  EXPECT_EQ(check_attention_tensors(*checkpoint_, small_config(), std::span(layers_).subspan(1, 1)).code(),
            StatusCode::kNotFound);
  // Values are not looked at.
  start(WeightEncoding::kFp8Block128);
  tensor("layers.0.attn.q_norm.weight").bytes.assign(320, '\xff');
  EXPECT_FALSE(load().ok());
  EXPECT_TRUE(check_attention_tensors(*checkpoint_, small_config(), layers_).ok());
}

}  // namespace
}  // namespace dsv4rt
