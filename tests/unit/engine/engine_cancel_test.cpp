// A request may be cancelled at every phase: nothing is leaked and the next request is fine.
#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class EngineCancelTest : public testing::Test {
 protected:
  EngineCancelTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  // Room for one sequence: a leaked block or slot is missed at once.
  [[nodiscard]] EngineOptions options(std::int32_t sequences = 1) const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = 3;
    options.limits = {
        .max_sequences = sequences, .max_context_tokens = 393, .max_step_tokens = 393, .pool_tokens = 393};
    return options;
  }

  // Prepares `tokens` tokens and runs the first `layers` layers with unrelated inputs.
  Step start(Engine& engine, SequenceId sequence, std::int32_t tokens, std::size_t layers) {
    const StepEntry entry{sequence, tokens};
    const auto step = engine.prepare({&entry, 1});
    EXPECT_OK(step);
    const LayerRows x = random_rows(99, 3, tokens, golden_.hidden());
    std::vector<Bf16Bits> out(x[0].size());
    for (std::size_t i = 0; i < layers; ++i) {
      EXPECT_OK(engine.forward_layer_from_host(*step, engine.layers()[i], x[i].data(), out.data()));
    }
    return *step;
  }

  // The engine serves the golden trace from an empty sequence as a fresh engine does, to its last token.
  void expect_serves(Engine& engine) {
    SequenceFeeder feeder(engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, golden_.tokens());
    const auto fresh = make_engine(options());
    SequenceFeeder alone(*fresh);
    FedSequence expected = alone.create(golden_.inputs);
    alone.feed_to(expected, golden_.tokens());
    EXPECT_TRUE(sequence.outputs == expected.outputs);
    EXPECT_EQ(feeder.digests(sequence), alone.digests(expected));
    feeder.release(sequence);
  }

  GoldenCase golden_;
};

TEST_F(EngineCancelTest, BeforeAnyLayerNothingHasHappened) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 130);
  const auto digests = feeder.digests(sequence);
  const Step step = start(*engine, sequence.id, 200, 0);
  const auto emptied = engine->cancel(step);
  ASSERT_OK(emptied);
  EXPECT_TRUE(emptied->empty());
  EXPECT_EQ(engine->length(sequence.id).value(), 130);
  EXPECT_EQ(feeder.digests(sequence), digests);
  feeder.release(sequence);
  expect_serves(*engine);
}

// Within the draft budget a cancelled step leaves the sequence as it was, after any number of layers.
TEST_F(EngineCancelTest, ShortStepsRollBackAfterAnyLayer) {
  for (std::size_t layers = 0; layers <= 3; ++layers) {
    for (const std::int64_t length : {2, 3, 127, 128, 130}) {
      SCOPED_TRACE(std::to_string(layers) + " layers at " + std::to_string(length));
      const auto engine = make_engine(options());
      SequenceFeeder feeder(*engine);
      FedSequence sequence = feeder.create(golden_.inputs);
      feeder.feed_to(sequence, length);
      const auto digests = feeder.digests(sequence);
      const auto emptied = engine->cancel(start(*engine, sequence.id, 3, layers));
      ASSERT_OK(emptied);
      EXPECT_TRUE(emptied->empty());
      EXPECT_EQ(engine->length(sequence.id).value(), length);
      EXPECT_EQ(feeder.digests(sequence), digests);
      feeder.feed_to(sequence, 200, 50);
      const auto fresh = make_engine(options());
      SequenceFeeder alone(*fresh);
      FedSequence expected = alone.create(golden_.inputs);
      alone.feed_to(expected, 200);
      EXPECT_TRUE(sequence.outputs == expected.outputs);
      EXPECT_EQ(feeder.digests(sequence), alone.digests(expected));
    }
  }
}

// A long prefill chunk overwrites rings that the old length needs: the sequence is emptied and reported.
TEST_F(EngineCancelTest, LongPrefillChunksEmptyTheSequence) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 150);
  const auto emptied = engine->cancel(start(*engine, sequence.id, 200, 1));
  ASSERT_OK(emptied);
  EXPECT_EQ(*emptied, std::vector<SequenceId>{sequence.id});
  EXPECT_EQ(engine->length(sequence.id).value(), 0);
  // The id is still good for a new start.
  FedSequence again{.id = sequence.id, .inputs = golden_.inputs, .outputs = LayerRows(3), .length = 0};
  feeder.feed_to(again, 20);
  feeder.release(again);
  expect_serves(*engine);
}

// Only who lost rows is emptied: neighbours in the same step go back to where they were.
TEST_F(EngineCancelTest, NeighboursOfALongChunkGoBack) {
  const auto engine = make_engine(options(2));
  SequenceFeeder feeder(*engine);
  FedSequence decoding = feeder.create(golden_.inputs);
  feeder.feed_to(decoding, 90);
  FedSequence prefilling = feeder.create(random_rows(4, 3, 300, golden_.hidden()));
  feeder.feed_to(prefilling, 20);
  const auto digests = feeder.digests(decoding);
  const StepEntry entries[] = {{decoding.id, 1}, {prefilling.id, 200}};
  const auto step = engine->prepare(entries);
  ASSERT_OK(step);
  const LayerRows x = random_rows(98, 1, 201, golden_.hidden());
  std::vector<Bf16Bits> out(x[0].size());
  ASSERT_OK(engine->forward_layer_from_host(*step, LayerId(0), x[0].data(), out.data()));
  const auto emptied = engine->cancel(*step);
  ASSERT_OK(emptied);
  EXPECT_EQ(*emptied, std::vector<SequenceId>{prefilling.id});
  EXPECT_EQ(engine->length(decoding.id).value(), 90);
  EXPECT_EQ(feeder.digests(decoding), digests);
  feeder.release(prefilling);
  feeder.feed_to(decoding, golden_.tokens(), 100);
  feeder.release(decoding);
  expect_serves(*engine);
}

// Hundreds of cancelled requests at every phase; room for exactly one sequence would run out by the second
// leaked block.
TEST_F(EngineCancelTest, NothingLeaksAtAnyPhase) {
  const auto engine = make_engine(options());
  for (std::size_t phase = 0; phase <= 3; ++phase) {
    for (const std::int32_t tokens : {1, 4, 129, 393}) {
      SCOPED_TRACE("phase " + std::to_string(phase) + ", " + std::to_string(tokens) + " tokens");
      // Cancelled in the step, then released; or released after its last step; or with a reservation.
      for (const std::int64_t reserve : {0, 393}) {
        const auto sequence = engine->create_sequence(reserve);
        ASSERT_OK(sequence);
        ASSERT_OK(engine->cancel(start(*engine, *sequence, tokens, phase)));
        EXPECT_EQ(engine->length(*sequence).value(), 0);
        ASSERT_OK(engine->release(*sequence));
        ASSERT_OK(engine->can_admit(393));
      }
    }
  }
  expect_serves(*engine);
}

TEST_F(EngineCancelTest, ForksAreCancelledWithoutHarmToTheirParent) {
  EngineOptions two = options(2);
  two.limits.pool_tokens = 0;
  const auto engine = make_engine(two);
  SequenceFeeder feeder(*engine);
  FedSequence parent = feeder.create(golden_.inputs);
  feeder.feed_to(parent, 130);
  const auto digests = feeder.digests(parent);
  for (std::size_t phase = 0; phase <= 3; ++phase) {
    for (const std::int32_t tokens : {2, 200}) {
      const auto child = engine->fork(parent.id);
      ASSERT_OK(child);
      ASSERT_OK(engine->cancel(start(*engine, *child, tokens, phase)));
      ASSERT_OK(engine->release(*child));
      EXPECT_EQ(feeder.digests(parent), digests);
    }
  }
  feeder.feed_to(parent, golden_.tokens(), 77);
  feeder.release(parent);
  expect_serves(*engine);
}

// A failed prepare is a cancelled request as well.
TEST_F(EngineCancelTest, RefusedStepsLeaveNothingBehind) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  for (const std::int32_t tokens : {394, 0}) {
    const StepEntry entry{sequence, tokens};
    EXPECT_TRUE(fails_with(engine->prepare({&entry, 1}), StatusCode::kInvalidArgument, {}));
  }
  ASSERT_OK(engine->release(sequence));
  expect_serves(*engine);
}

}  // namespace
}  // namespace dsv4rt::test
