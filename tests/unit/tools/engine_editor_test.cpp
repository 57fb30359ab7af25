// A cache that is copied from one engine into another one serves as the original does.
#include "tools/lib/engine_editor.h"

#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/recording_ops.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class EngineEditorTest : public testing::Test {
 protected:
  EngineEditorTest() : golden_(GoldenCase::open("tiny-bf16")), engine_(make_engine(golden_.options())) {}

  // A sequence of `tokens` tokens whose layers did not run.
  SequenceId adopt(std::int32_t tokens) {
    const SequenceId sequence = engine_->create_sequence().value();
    const StepEntry entry{sequence, tokens};
    const Step step = engine_->prepare({&entry, 1}).value();
    EXPECT_OK(EngineEditor(*engine_).skip_layers(step));
    EXPECT_OK(engine_->commit(step));
    return sequence;
  }

  GoldenCase golden_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineEditorTest, SequencesGetTheContextsOfAShape) {
  EngineOptions options = golden_.options();
  options.limits = {.max_sequences = 2, .max_context_tokens = 30, .max_step_tokens = 8, .pool_tokens = 60};
  const auto engine = make_engine(options);
  for (const std::int64_t shortest : {0, 3}) {
    const StepShape shape{.batch = 2, .context_tokens = 30, .shortest_tokens = shortest};
    const std::vector<SequenceId> sequences{engine->create_sequence().value(), engine->create_sequence().value()};
    ASSERT_OK(EngineEditor(*engine).skip_contexts(sequences, shape));
    EXPECT_EQ(engine->length(sequences[0]).value(), 30);
    EXPECT_EQ(engine->length(sequences[1]).value(), context_of(shape, 1));
    for (const SequenceId sequence : sequences) ASSERT_OK(engine->release(sequence));
  }
}

TEST_F(EngineEditorTest, CopiedCacheContinuesAsTheOriginal) {
  constexpr std::int64_t kTokens = 262;
  const auto original = make_engine(golden_.options());
  SequenceFeeder source(*original);
  FedSequence fed = source.create(golden_.inputs);
  source.feed_to(fed, kTokens);

  FedSequence copy = fed;
  copy.id = adopt(kTokens);
  EngineEditor from(*original);
  EngineEditor to(*engine_);
  int regions = 0;
  for (const LayerId layer : engine_->layers()) {
    for (int number = 0; number < kCacheRoleCount; ++number) {
      const auto role = static_cast<CacheRole>(number);
      if (const PoolSpec* pool = to.pool(layer, role)) {
        ++regions;
        const std::int64_t rows = kTokens / pool->ratio;
        for (std::int64_t block = 0; block * pool->shape.rows < rows; ++block) {
          ASSERT_OK(to.write_block(layer, role, copy.id, block, from.read_block(layer, role, fed.id, block).value()));
        }
      }
      if (to.ring(layer, role) != nullptr) {
        ++regions;
        ASSERT_OK(to.write_ring(layer, role, copy.id, from.read_ring(layer, role, fed.id).value()));
      }
    }
  }
  EXPECT_EQ(regions, 3 + 3 + 3);  // window rings; paged rows; compressor rings
  SequenceFeeder target(*engine_);
  EXPECT_EQ(target.digests(copy), source.digests(fed));
  source.feed_to(fed, golden_.tokens(), 50);
  target.feed_to(copy, golden_.tokens(), 7);
  EXPECT_TRUE(copy.outputs == fed.outputs);
  EXPECT_EQ(target.digests(copy), source.digests(fed));
}

TEST_F(EngineEditorTest, WhatIsNotThereIsNamed) {
  EngineEditor editor(*engine_);
  const SequenceId sequence = adopt(9);
  const std::vector<std::byte> bytes(5);
  using enum CacheRole;
  EXPECT_EQ(editor.pool(LayerId(2), kCsaKv), nullptr);
  EXPECT_EQ(editor.pool(LayerId(7), kCsaKv), nullptr);
  EXPECT_EQ(editor.ring(LayerId(0), kCsaState), nullptr);
  EXPECT_TRUE(
      fails_with(editor.read_block(LayerId(2), kCsaKv, sequence, 0), StatusCode::kNotFound, {"CSA_KV of layer 2"}));
  EXPECT_TRUE(
      fails_with(editor.read_block(LayerId(1), kCsaKv, sequence, 1), StatusCode::kNotFound, {"block 1", "has 1"}));
  EXPECT_TRUE(
      fails_with(editor.write_block(LayerId(1), kCsaKv, sequence, 0, bytes), StatusCode::kInvalidArgument, {"5 B"}));
  EXPECT_TRUE(fails_with(editor.read_ring(LayerId(0), kCsaState, sequence), StatusCode::kNotFound, {"CSA_STATE"}));
  EXPECT_TRUE(
      fails_with(editor.write_ring(LayerId(0), kSwaKv, sequence, bytes), StatusCode::kInvalidArgument, {"5 B"}));
  EXPECT_TRUE(fails_with(editor.write_table_entry(LayerId(1), kCsaKv, sequence, -1, 0), StatusCode::kInvalidArgument,
                         {"entry -1"}));
  EXPECT_TRUE(fails_with(editor.skip_layers(Step{}), StatusCode::kFailedPrecondition, {}));
}

TEST_F(EngineEditorTest, LayersRunThroughOtherOperations) {
  const SequenceId sequence = engine_->create_sequence().value();
  const StepEntry entry{sequence, 6};
  const Step step = engine_->prepare({&entry, 1}).value();
  EngineEditor editor(*engine_);
  RecordingOps ops(&editor.backend_ops());
  std::vector<Bf16Bits> out(static_cast<std::size_t>(6 * golden_.hidden()));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_OK(editor.forward_layer_with(ops, step, engine_->layers()[i], golden_.inputs[i].data(), out.data()));
  }
  EXPECT_GT(ops.calls.size(), 20U);
  EXPECT_OK(engine_->commit(step));
}

}  // namespace
}  // namespace dsv4rt::test
