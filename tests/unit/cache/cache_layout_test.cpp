// The role table: figures of the released models, ring sizes, and what is refused.
#include "cache/cache_layout.h"

#include <cmath>

#include <gtest/gtest.h>

#include "cache_fixture.h"

namespace dsv4rt {
namespace {

using testing_cache::config_with_ratios;
using testing_cache::model_config;

CacheLayout layout_of(const ModelConfig& config, const CacheFormats& formats = {}) {
  Result<CacheLayout> layout = CacheLayout::create(config, *LayerSchedule::create(config), formats);
  EXPECT_TRUE(layout.ok()) << layout.status().to_string();
  return *layout;
}

Status refusal(const ModelConfig& config, const CacheFormats& formats) {
  return CacheLayout::create(config, *LayerSchedule::create(config), formats).status();
}

TEST(CacheLayout, BytesPerTokenAreTheDesignsFigures) {
  CacheFormats fp8_keys;
  fp8_keys.index_keys = IndexKeyFormat::kFp8;
  const ModelConfig flash = model_config("deepseek-v4-flash");
  const ModelConfig pro = model_config("deepseek-v4-pro");
  EXPECT_DOUBLE_EQ(layout_of(flash).bytes_per_token(), 3514.25);
  EXPECT_DOUBLE_EQ(layout_of(flash, fp8_keys).bytes_per_token(), 3850.25);
  EXPECT_EQ(std::floor(layout_of(flash).bytes_per_token()), 3514);
  EXPECT_EQ(std::floor(layout_of(flash, fp8_keys).bytes_per_token()), 3850);
  EXPECT_EQ(std::floor(layout_of(pro).bytes_per_token()), 5031);
  EXPECT_EQ(std::floor(layout_of(pro, fp8_keys).bytes_per_token()), 5511);
}

TEST(CacheLayout, BytesPerSequenceAreTheDesignsFigures) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const auto mebibytes = [](const char* model) {
    return static_cast<double>(layout_of(model_config(model)).bytes_per_sequence()) / kMiB;
  };
  EXPECT_NEAR(mebibytes("deepseek-v4-flash"), 14.7, 0.05);
  EXPECT_NEAR(mebibytes("deepseek-v4-pro"), 22.2, 0.05);
}

TEST(CacheLayout, PoolsAndSlotsAreOrderedByLayerThenRole) {
  const CacheLayout layout = layout_of(config_with_ratios({0, 4, 128}));
  ASSERT_EQ(layout.pools().size(), 3u);
  EXPECT_EQ(layout.pool_index(LayerId(1), CacheRole::kCsaKv), 0);
  EXPECT_EQ(layout.pool_index(LayerId(1), CacheRole::kIndexK), 1);
  EXPECT_EQ(layout.pool_index(LayerId(2), CacheRole::kHcaKv), 2);
  EXPECT_EQ(layout.pool_index(LayerId(0), CacheRole::kCsaKv), -1);
  EXPECT_EQ(layout.pools()[2].ratio_class, 1);
  ASSERT_EQ(layout.slots().size(), 6u);
  EXPECT_EQ(layout.slot_index(LayerId(0), CacheRole::kSwaKv), 0);
  EXPECT_EQ(layout.slot_index(LayerId(1), CacheRole::kSwaKv), 1);
  EXPECT_EQ(layout.slot_index(LayerId(1), CacheRole::kCsaState), 2);
  EXPECT_EQ(layout.slot_index(LayerId(1), CacheRole::kIndexState), 3);
  EXPECT_EQ(layout.slot_index(LayerId(2), CacheRole::kHcaState), 5);
  EXPECT_EQ(layout.slot_index(LayerId(2), CacheRole::kIndexState), -1);
}

// Lesson 4: the ring's pad follows from the draft budget; it is no constant.
TEST(CacheLayout, Lesson4RingPadIsDerivedFromTheDraftBudget) {
  for (const std::int32_t budget : {0, 1, 4, 5, 64}) {
    CacheFormats formats;
    formats.draft_budget_tokens = budget;
    const CacheLayout layout = layout_of(config_with_ratios({4, 128}), formats);
    for (const SlotSpec& slot : layout.slots()) {
      EXPECT_EQ(slot.ring_rows, slot.needed_rows + 1 + budget) << cache_role_name(slot.role);
      // Every rejection of a step of budget + 1 tokens, at every residue, keeps what the next token needs.
      for (std::int64_t length = 0; length < 600; ++length) {
        EXPECT_LE(earliest_reachable_length(slot, length + budget + 1), length) << cache_role_name(slot.role);
      }
    }
  }
}

TEST(CacheLayout, SlotBytes) {
  CacheFormats formats;
  formats.draft_budget_tokens = 3;
  const CacheLayout layout = layout_of(config_with_ratios({4, 128}), formats);
  const auto slot = [&](int layer, CacheRole role) {
    return layout.slots()[static_cast<std::size_t>(layout.slot_index(LayerId(layer), role))];
  };
  EXPECT_EQ(slot(0, CacheRole::kSwaKv).slot_bytes, block_shape(RowFormat::kFp8DsMla, 131).block_bytes);
  EXPECT_EQ(slot(0, CacheRole::kSwaKv).row_bytes, 584);
  EXPECT_EQ(slot(0, CacheRole::kCsaState).slot_bytes, 11 * 2 * 1024 * 4);
  EXPECT_EQ(slot(0, CacheRole::kIndexState).slot_bytes, 11 * 2 * 256 * 4);
  EXPECT_EQ(slot(1, CacheRole::kHcaState).slot_bytes, 131 * 2 * 512 * 4);
}

// The inverse of first_needed_position agrees with a search, for every ring and high water.
TEST(CacheLayout, EarliestReachableLengthInvertsFirstNeededPosition) {
  CacheFormats formats;
  formats.draft_budget_tokens = 5;
  const CacheLayout layout = layout_of(config_with_ratios({4, 128}, 16), formats);
  for (const SlotSpec& slot : layout.slots()) {
    for (std::int64_t high_water = 0; high_water < 700; ++high_water) {
      std::int64_t searched = high_water;
      while (searched > 0 && first_needed_position(slot, searched - 1) >= high_water - slot.ring_rows) --searched;
      EXPECT_EQ(earliest_reachable_length(slot, high_water), searched)
          << cache_role_name(slot.role) << " high water " << high_water;
    }
  }
}

TEST(CacheLayout, FirstNeededPosition) {
  const CacheLayout layout = layout_of(config_with_ratios({4, 128}));
  const SlotSpec& window = layout.slots()[0];
  const SlotSpec& csa = layout.slots()[1];
  const SlotSpec& hca = layout.slots()[4];
  EXPECT_EQ(first_needed_position(window, 127), 0);
  EXPECT_EQ(first_needed_position(window, 128), 1);
  EXPECT_EQ(first_needed_position(csa, 3), 0);
  EXPECT_EQ(first_needed_position(csa, 7), 0);
  EXPECT_EQ(first_needed_position(csa, 8), 4);
  EXPECT_EQ(first_needed_position(hca, 127), 0);
  EXPECT_EQ(first_needed_position(hca, 128), 128);
}

// Lesson 12: the smallest shared prefix is 256 tokens, a multiple of every ratio, and hits are possible there.
TEST(CacheLayout, Lesson12SharingUnitIs256) {
  for (const char* name : {"deepseek-v4-flash", "deepseek-v4-pro", "tiny"}) {
    const ModelConfig config = model_config(name);
    const CacheLayout layout = layout_of(config);
    EXPECT_EQ(layout.sharing_unit_tokens(), 256) << name;
    for (const PoolSpec& pool : layout.pools()) EXPECT_EQ(256 % pool.ratio, 0) << name;
  }
  EXPECT_EQ(layout_of(config_with_ratios({0})).sharing_unit_tokens(), 256);
}

TEST(CacheLayout, AcceptsBlocksThatDivideOrMultiplyTheUnit) {
  const ModelConfig config = config_with_ratios({4, 128});
  for (const std::int32_t rows : {1, 2, 16, 64, 128, 1024}) {
    CacheFormats formats;
    formats.csa_rows_per_block = rows;
    EXPECT_TRUE(refusal(config, formats).ok()) << rows;
  }
  for (const std::int32_t rows : {1, 2, 4, 16, 64}) {
    CacheFormats formats;
    formats.hca_rows_per_block = rows;
    EXPECT_TRUE(refusal(config, formats).ok()) << rows;
  }
}

TEST(CacheLayout, RefusalsNameFieldValueAndRange) {
  const ModelConfig config = config_with_ratios({4, 128});
  const auto expect_refusal = [&](const CacheFormats& formats, const std::string& field, const std::string& value) {
    const Status status = refusal(config, formats);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(value), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("accepted"), std::string::npos) << status.message();
  };
  CacheFormats formats;
  formats.csa_rows_per_block = 0;
  expect_refusal(formats, "csa_rows_per_block", "0");
  formats.csa_rows_per_block = 48;
  expect_refusal(formats, "csa_rows_per_block", "48");
  formats.csa_rows_per_block = 1 << 30;
  expect_refusal(formats, "csa_rows_per_block", "1073741824");
  formats = {};
  formats.hca_rows_per_block = 3;
  expect_refusal(formats, "hca_rows_per_block", "3");
  formats.hca_rows_per_block = -1;
  expect_refusal(formats, "hca_rows_per_block", "-1");
  formats = {};
  formats.draft_budget_tokens = 65;
  expect_refusal(formats, "draft_budget_tokens", "65");
  formats.draft_budget_tokens = -1;
  expect_refusal(formats, "draft_budget_tokens", "-1");
  EXPECT_EQ(refusal(config_with_ratios({4}, 0), {}).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(config_with_ratios({4}, std::int64_t{1} << 40), {}).code(), StatusCode::kInvalidArgument);
}

TEST(CacheLayout, RoleNames) {
  EXPECT_EQ(cache_role_name(CacheRole::kSwaKv), "SWA_KV");
  EXPECT_EQ(cache_role_name(CacheRole::kHcaState), "HCA_STATE");
  EXPECT_EQ(cache_role_name(static_cast<CacheRole>(99)), "unknown");
}

}  // namespace
}  // namespace dsv4rt
