#include <algorithm>
#include <map>

#include <gtest/gtest.h>

#include "dsv4rt/model.h"
#include "unit/model/sample_configs.h"

namespace dsv4rt {
namespace {

using test::config_path;

LayerSchedule schedule_of(const std::string& name) {
  const auto config = ModelConfig::from_file(config_path(name));
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  auto schedule = LayerSchedule::create(*config);
  EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
  return *std::move(schedule);
}

std::map<std::string, int> kind_counts(const LayerSchedule& schedule) {
  std::map<std::string, int> counts;
  for (const LayerSpec& layer : schedule.layers()) ++counts[std::string(attention_kind_name(layer.kind))];
  return counts;
}

TEST(LayerSchedule, Flash) {
  const LayerSchedule schedule = schedule_of("deepseek-v4-flash.json");
  ASSERT_EQ(schedule.layers().size(), 43u);
  EXPECT_EQ(kind_counts(schedule), (std::map<std::string, int>{{"swa", 2}, {"csa", 21}, {"hca", 20}}));
  EXPECT_EQ(schedule.layer(LayerId(0)).kind, AttentionKind::kSlidingWindow);
  EXPECT_EQ(schedule.layer(LayerId(2)).kind, AttentionKind::kCompressedSparse);
  EXPECT_EQ(schedule.layer(LayerId(3)).kind, AttentionKind::kHeavilyCompressed);
  EXPECT_EQ(schedule.layer(LayerId(42)).kind, AttentionKind::kCompressedSparse);
}

TEST(LayerSchedule, Pro) {
  const LayerSchedule schedule = schedule_of("deepseek-v4-pro.json");
  ASSERT_EQ(schedule.layers().size(), 61u);
  EXPECT_EQ(kind_counts(schedule), (std::map<std::string, int>{{"csa", 30}, {"hca", 31}}));
  EXPECT_EQ(schedule.layer(LayerId(1)).kind, AttentionKind::kHeavilyCompressed);
  EXPECT_EQ(schedule.layer(LayerId(60)).kind, AttentionKind::kCompressedSparse);
}

TEST(LayerSchedule, EveryFieldOfEveryKind) {
  const LayerSchedule schedule = schedule_of("tiny.json");
  ASSERT_EQ(schedule.layers().size(), 4u);
  const LayerSpec& swa = schedule.layer(LayerId(0));
  EXPECT_EQ(swa.ratio, 0);
  EXPECT_FALSE(swa.overlap);
  EXPECT_FALSE(swa.indexer);
  const LayerSpec& csa = schedule.layer(LayerId(1));
  EXPECT_EQ(csa.ratio, 4);
  EXPECT_TRUE(csa.overlap);
  EXPECT_TRUE(csa.indexer);
  const LayerSpec& hca = schedule.layer(LayerId(2));
  EXPECT_EQ(hca.ratio, 128);
  EXPECT_FALSE(hca.overlap);
  EXPECT_FALSE(hca.indexer);
  for (std::int32_t id = 0; id < 4; ++id) EXPECT_EQ(schedule.layer(LayerId(id)).id, LayerId(id));
}

// A wrong base or missing YaRN in one layer is invisible within the window and fatal past it, so the
// choice is pinned per layer, whichever file it comes from.
TEST(LayerSchedule, Lesson15RopeChoiceFollowsTheRatioOfEachLayer) {
  for (const char* name : {"deepseek-v4-flash.json", "deepseek-v4-pro.json", "tiny.json"}) {
    const LayerSchedule schedule = schedule_of(name);
    for (const LayerSpec& layer : schedule.layers()) {
      const RopeChoice expected = layer.ratio == 0 ? RopeChoice::kPlain : RopeChoice::kCompressed;
      EXPECT_EQ(layer.rope, expected) << name << " layer " << layer.id.value;
    }
  }
}

TEST(LayerSchedule, RatioClassesAndAlignment) {
  const LayerSchedule flash = schedule_of("deepseek-v4-flash.json");
  EXPECT_EQ(std::vector<std::int32_t>(flash.ratios().begin(), flash.ratios().end()),
            (std::vector<std::int32_t>{4, 128}));
  EXPECT_EQ(flash.ratio_class(4), 0);
  EXPECT_EQ(flash.ratio_class(128), 1);
  EXPECT_EQ(flash.ratio_class(0), -1);
  EXPECT_EQ(flash.ratio_class(2), -1);
  EXPECT_EQ(flash.alignment_tokens(), 128);
}

TEST(LayerSchedule, ModelsWithFewerKinds) {
  ModelConfig config = *test::parse(test::hugging_face_config());
  config.num_hidden_layers = 2;
  config.compress_ratios = {0, 0};
  auto schedule = LayerSchedule::create(config);
  ASSERT_TRUE(schedule.ok());
  EXPECT_TRUE(schedule->ratios().empty());
  EXPECT_EQ(schedule->alignment_tokens(), 1);

  config.compress_ratios = {128, 0};
  schedule = LayerSchedule::create(config);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->ratio_class(128), 0);
  EXPECT_EQ(schedule->ratio_class(4), -1);

  config.compress_ratios = {4, 4};
  EXPECT_EQ(LayerSchedule::create(config)->alignment_tokens(), 4);
}

// The tail of the list belongs to draft blocks, however long it is and whatever it says.
TEST(LayerSchedule, LongerRatioListDoesNotAddLayers) {
  auto json = test::hugging_face_config();
  json["compress_ratios"] = {0, 4, 128, 4, 0, 2, 1, 0};
  const auto config = test::parse(json);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  const auto schedule = LayerSchedule::create(*config);
  ASSERT_TRUE(schedule.ok());
  EXPECT_EQ(schedule->layers().size(), 4u);
  EXPECT_EQ(schedule->ratios().size(), 2u);
}

TEST(LayerSchedule, UnknownRatioNamesLayerValueAndAccepted) {
  ModelConfig config = *test::parse(test::hugging_face_config());
  config.compress_ratios[2] = 8;
  const auto schedule = LayerSchedule::create(config);
  ASSERT_FALSE(schedule.ok());
  EXPECT_EQ(schedule.status().code(), StatusCode::kUnsupported);
  for (const char* part : {"layer 2", "= 8", "0 (swa)", "4 (csa)", "128 (hca)"}) {
    EXPECT_NE(schedule.status().message().find(part), std::string::npos) << schedule.status().message();
  }
}

// create() may be handed a config that nobody validated.
TEST(LayerSchedule, UnvalidatedConfigIsRefused) {
  EXPECT_FALSE(LayerSchedule::create(ModelConfig{}).ok());
  ModelConfig config = *test::parse(test::hugging_face_config());
  for (const std::int64_t layers : {std::int64_t{6}, std::int64_t{-1}, std::int64_t{1} << 62}) {
    config.num_hidden_layers = layers;
    EXPECT_FALSE(LayerSchedule::create(config).ok()) << layers;
  }
}

TEST(LayerSchedule, LayerOutOfRangeThrows) {
  const LayerSchedule schedule = schedule_of("tiny.json");
  EXPECT_THROW((void)schedule.layer(LayerId(4)), std::out_of_range);
  EXPECT_THROW((void)schedule.layer(LayerId(-1)), std::out_of_range);
}

}  // namespace
}  // namespace dsv4rt
