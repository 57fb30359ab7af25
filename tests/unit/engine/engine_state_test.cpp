// State as data says what the engine does, and views lead to the rows that it reads.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "layout/row_format.h"
#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/trace_check.h"

namespace dsv4rt::test {
namespace {

class EngineStateTest : public testing::Test {
 protected:
  EngineStateTest() : golden_(GoldenCase::open("tiny-bf16")) {
    EngineOptions options = golden_.options();
    options.backend = "cpu";
    options.limits = {.max_sequences = 3, .max_context_tokens = 512, .max_step_tokens = 300, .pool_tokens = 512};
    options.csa_rows_per_block = 16;
    engine_ = make_engine(options);
  }

  const GoldenCase golden_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineStateTest, CountsFollowSequencesAndSteps) {
  const EngineState empty = engine_->state().value();
  EXPECT_EQ(empty.max_sequences, 3);
  EXPECT_EQ(empty.live_sequences, 0);
  EXPECT_EQ(empty.step, 0U);
  ASSERT_EQ(empty.roles.size(), 3U);
  for (const RoleState& role : empty.roles) {
    EXPECT_EQ(role.free_blocks, role.total_blocks);
    EXPECT_GT(role.total_blocks, 0);
    EXPECT_GT(role.layers, 0);
    EXPECT_GE(empty.tokens_left, 512);
  }
  const SequenceId sequence = engine_->create_sequence(300).value();
  const EngineState reserved = engine_->state().value();
  EXPECT_EQ(reserved.live_sequences, 1);
  EXPECT_LT(reserved.tokens_left, empty.tokens_left);
  EXPECT_GT(reserved.roles[0].reserved_blocks, 0);
  const StepEntry entry{sequence, 260};
  const Step step = engine_->prepare({&entry, 1}).value();
  const EngineState during = engine_->state().value();
  EXPECT_EQ(during.step, step.serial);
  const SequenceState one = engine_->sequence_state(sequence).value();
  EXPECT_EQ(one.length, 260);
  EXPECT_EQ(one.reserve_tokens, 300);
  for (const RoleState& role : during.roles) {
    EXPECT_EQ(role.used_blocks, one.blocks[static_cast<std::size_t>(role.role)]);
    EXPECT_EQ(role.total_blocks, role.free_blocks + role.used_blocks + role.cached_blocks + role.pinned_blocks);
    EXPECT_EQ(role.used_blocks, (260 + role.tokens_per_block - 1) / role.tokens_per_block);
  }
  EXPECT_OK(engine_->cancel(step));
  EXPECT_EQ(engine_->state()->step, 0U);
  EXPECT_EQ(engine_->state()->tokens_left, reserved.tokens_left);
  EXPECT_OK(engine_->release(sequence));
  EXPECT_TRUE(fails_with(engine_->sequence_state(sequence), StatusCode::kStaleHandle, {}));
}

TEST_F(EngineStateTest, ShortagesAreForetoldAndNamed) {
  const SequenceId a = engine_->create_sequence(512).value();
  const SequenceId b = engine_->create_sequence().value();
  const StepEntry fits[] = {{a, 128}, {b, 128}};
  EXPECT_EQ(engine_->can_step(fits).value(), std::nullopt);
  ASSERT_OK(engine_->create_sequence(engine_->state()->tokens_left));
  const StepEntry fill{a, 200};
  const Step step = engine_->prepare({&fill, 1}).value();
  const StepEntry rest[] = {{a, 1}, {b, 200}};
  const auto shortage = engine_->can_step(rest).value();
  ASSERT_TRUE(shortage.has_value());
  EXPECT_EQ(shortage->entry, 1);
  EXPECT_GT(shortage->missing_blocks, 0);
  EXPECT_GT(shortage->missing_bytes, shortage->missing_blocks);
  EXPECT_OK(engine_->cache_view(shortage->layer, shortage->role));
  EXPECT_OK(engine_->cancel(step));
  const StepEntry wrong{a, 0};
  EXPECT_TRUE(fails_with(engine_->can_step({&wrong, 1}), StatusCode::kInvalidArgument, {"tokens = 0"}));
}

// Rows found by a view's own arithmetic, against those of the inspector.
TEST_F(EngineStateTest, ViewsLeadToTheRows) {
  SequenceFeeder feeder(*engine_);
  FedSequence other = feeder.create(golden_.inputs);
  feeder.feed_to(other, 20);  // so that blocks and slots are not the first
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 150);
  EngineInspector inspector(*engine_);
  const SequenceState state = engine_->sequence_state(sequence.id).value();
  EXPECT_EQ(state.slot, 1);
  int roles = 0;
  for (const LayerSpec& spec : engine_->layer_specs()) {
    for (const CacheRole role : {CacheRole::kCsaKv, CacheRole::kIndexK, CacheRole::kHcaKv}) {
      const auto view = engine_->cache_view(spec.id, role);
      if (!view.ok()) {
        EXPECT_TRUE(fails_with(view, StatusCode::kNotFound, {"has no "}));
        continue;
      }
      ++roles;
      ASSERT_TRUE(view->paged);
      const std::vector<float> expected = inspector.paged_values(spec.id, role, sequence.id).value();
      const int width = role == CacheRole::kIndexK ? kIndexHeadDim : kHeadDim;
      const BlockShape shape{.rows = view->rows_per_block,
                             .data_bytes = view->data_bytes,
                             .scale_bytes = view->scale_bytes,
                             .block_bytes = view->block_stride_bytes};
      const std::int64_t rows = state.length / view->tokens_per_row;
      ASSERT_EQ(expected.size(), static_cast<std::size_t>(rows * width));
      EXPECT_EQ(state.blocks[static_cast<std::size_t>(role)], (rows + shape.rows - 1) / shape.rows);
      const std::int32_t* const table = view->block_table + state.slot * view->block_table_columns;
      std::vector<float> actual(expected.size());
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::int32_t block = table[row / shape.rows];
        ASSERT_GT(block, 0);
        ASSERT_LT(block, view->block_count);
        const std::byte* const bytes = view->base + block * view->block_stride_bytes;
        float* const values = actual.data() + row * width;
        if (role == CacheRole::kIndexK) {
          EXPECT_EQ(view->format, index_key_format_name(engine_->formats().index_keys));
          decode_row(engine_->formats().index_keys, shape, bytes, row % shape.rows, values);
        } else {
          EXPECT_EQ(view->format, row_format_name(engine_->formats().rows));
          decode_row(engine_->formats().rows, shape, bytes, row % shape.rows, values);
        }
      }
      EXPECT_EQ(actual, expected) << cache_role_name(role);
    }
    const CacheView window = engine_->cache_view(spec.id, CacheRole::kSwaKv).value();
    EXPECT_FALSE(window.paged);
    EXPECT_EQ(window.block_table, nullptr);
    const std::vector<float> expected = inspector.window_values(spec.id, sequence.id).value();
    const BlockShape shape{.rows = window.rows_per_block,
                           .data_bytes = window.data_bytes,
                           .scale_bytes = window.scale_bytes,
                           .block_bytes = window.block_stride_bytes};
    std::vector<float> last(kHeadDim);
    decode_row(engine_->formats().rows, shape, window.base + state.slot * window.block_stride_bytes,
               (state.length - 1) % shape.rows, last.data());
    EXPECT_TRUE(std::equal(last.begin(), last.end(), expected.end() - kHeadDim));
  }
  EXPECT_EQ(roles, 3);
  EXPECT_TRUE(fails_with(engine_->cache_view(LayerId(9), CacheRole::kSwaKv), StatusCode::kInvalidArgument, {"9"}));
  EXPECT_TRUE(fails_with(engine_->cache_view(LayerId(0), CacheRole{7}), StatusCode::kInvalidArgument, {"role 7"}));
}

TEST_F(EngineStateTest, DescribesItself) {
  const auto json = nlohmann::json::parse(engine_->describe().value());
  EXPECT_EQ(json["config"]["hidden_size"], golden_.hidden());
  ASSERT_EQ(json["layers"].size(), engine_->layer_specs().size());
  EXPECT_EQ(json["layers"][1]["kind"], attention_kind_name(engine_->layer_specs()[1].kind));
  EXPECT_EQ(json["formats"]["rows"], row_format_name(engine_->formats().rows));
  EXPECT_EQ(json["limits"]["max_sequences"], 3);
  EXPECT_EQ(json["backend"], "cpu");
}

// What is told, and what tools allow, is the precision that the backend has, not the one that was asked for.
TEST(EnginePrecision, IsThatOfTheBackend) {
  EngineOptions options = GoldenCase::open("tiny-fp8").options();
  options.backend = "cpu";
  options.linear_precision = LinearPrecision::kFp8;
  const auto engine = make_engine(options);
  const auto expect_told = [&engine](LinearPrecision precision, const TraceTolerance& tolerance) {
    const auto json = nlohmann::json::parse(engine->describe().value());
    EXPECT_EQ(json["linear_precision"], linear_precision_name(precision));
    EXPECT_EQ(json["deterministic"], precision != LinearPrecision::kNvfp4);
    EXPECT_EQ(EngineInspector(*engine).deterministic(), precision != LinearPrecision::kNvfp4);
    EXPECT_EQ(EngineInspector(*engine).linear_precision(), precision);
    EXPECT_EQ(default_tolerance(*engine).output_relative_error, tolerance.output_relative_error);
  };
  ASSERT_NE(TraceTolerance::fp8_linears().output_relative_error, TraceTolerance::fp8_precision().output_relative_error);
  expect_told(LinearPrecision::kExact, TraceTolerance::fp8_linears());
  BackendSwap backend(*engine);
  backend->own_memory = true;  // a device without the kernels
  expect_told(LinearPrecision::kExact, TraceTolerance::fp8_linears());
  backend->precision = LinearPrecision::kFp8;
  expect_told(LinearPrecision::kFp8, TraceTolerance::fp8_precision());
  backend->precision = LinearPrecision::kNvfp4;
  expect_told(LinearPrecision::kNvfp4, TraceTolerance::fp8_linears());
}

TEST_F(EngineStateTest, LayersKeepTheModelsNumbers) {
  EngineOptions options = golden_.options();
  options.first_layer = 1;
  options.layer_count = 1;
  const auto engine = make_engine(options);
  ASSERT_EQ(engine->layer_specs().size(), 1U);
  EXPECT_EQ(engine->layer_specs()[0].id, LayerId(1));
  EXPECT_EQ(engine->layer_specs()[0].kind, engine_->layer_specs()[1].kind);
}

}  // namespace
}  // namespace dsv4rt::test
