// What becomes of cached prefixes when the backend refuses its part: the call has changed nothing, or only a state is
// missing, or the engine says that it is broken.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

class PrefixBackendFailureTest : public testing::Test {
 protected:
  PrefixBackendFailureTest() {
    std::iota(ids_.begin(), ids_.end(), 100);
    EngineOptions options = SyntheticModel{.config = "tiny", .first_layer = 0, .layer_count = 3}.options();
    options.limits = {
        .max_sequences = 2, .max_context_tokens = 600, .max_step_tokens = 600, .pool_tokens = 0, .boundary_states = 8};
    options.prefix_cache.policy.interval_tokens = 1;
    options.poison_freed_blocks = true;
    options.on_warning = [this](std::string_view text) { warnings_.emplace_back(text); };
    engine_ = make_engine(options);
    rows_ = random_rows(1, static_cast<std::int64_t>(engine_->layers().size()), 600, engine_->config().hidden_size);
  }

  // Every operation of this name fails from now on.
  void fail(CapturingBackend& backend, const std::string& operation, StatusCode code) {
    backend.capturing_ops().fail = [=](std::string_view name) -> Status {
      return name == operation ? Status(code, "refused " + operation) : Status{};
    };
  }
  static void work_again(CapturingBackend& backend) { backend.capturing_ops().fail = nullptr; }

  // A released sequence has left 500 tokens, at every boundary of which another can begin.
  void fill(SequenceFeeder& feeder) {
    FedSequence writer = feeder.create(rows_, ids_);
    feeder.feed_to(writer, 500);
    feeder.release(writer);
  }
  [[nodiscard]] std::int64_t hit() const { return engine_->prefix_lookup(ids_).value().hit_tokens; }
  [[nodiscard]] std::vector<std::string> cold_digests(std::int64_t length) const {
    EngineOptions options = SyntheticModel{.config = "tiny", .first_layer = 0, .layer_count = 3}.options();
    options.limits = {.max_sequences = 1, .max_context_tokens = 600, .max_step_tokens = 600, .pool_tokens = 0};
    const auto engine = make_engine(options);
    SequenceFeeder feeder(*engine);
    FedSequence cold = feeder.create(rows_);
    feeder.feed_to(cold, length);
    return feeder.digests(cold);
  }
  // Both slots can be had, and a hit gives what a cold run does.
  void expect_works(SequenceFeeder& feeder) {
    FedSequence warm = feeder.create(rows_, {ids_.begin(), ids_.begin() + 400});
    EXPECT_EQ(warm.length, 384);
    FedSequence other = feeder.create(rows_, {ids_.begin(), ids_.begin() + 130});
    EXPECT_EQ(other.length, 128);
    feeder.feed_to(warm, 400);
    EXPECT_EQ(feeder.digests(warm), cold_digests(400));
    feeder.release(warm);
    feeder.release(other);
  }

  std::vector<std::int32_t> ids_ = std::vector<std::int32_t>(600);
  std::vector<std::string> warnings_;
  std::unique_ptr<Engine> engine_;
  LayerRows rows_;
};

TEST_F(PrefixBackendFailureTest, ASequenceThatCannotBeFilledWasNotCreated) {
  BackendSwap backend(*engine_);
  SequenceFeeder feeder(*engine_);
  fill(feeder);
  const FedSequence parent = feeder.create(rows_, {ids_.begin(), ids_.begin() + 300});
  for (const char* operation : {"write_table_rows", "copy_boundary_rows"}) {
    SCOPED_TRACE(operation);
    fail(*backend, operation, StatusCode::kResourceExhausted);
    for (int tries = 0; tries < 3; ++tries) {  // more than there are slots
      EXPECT_EQ(engine_->create_sequence(ids_, {}).status().code(), StatusCode::kResourceExhausted);
      EXPECT_EQ(engine_->branch(parent.id, 128).status().code(), StatusCode::kResourceExhausted);
    }
    work_again(*backend);
  }
  feeder.release(parent);
  expect_works(feeder);
}

TEST_F(PrefixBackendFailureTest, AStateThatCannotBeTakenIsMissingAndTold) {
  BackendSwap backend(*engine_);
  SequenceFeeder feeder(*engine_);
  fail(*backend, "copy_boundary_rows", StatusCode::kResourceExhausted);
  FedSequence writer = feeder.create(rows_, ids_);
  feeder.feed_to(writer, 130, 1);  // a boundary that the rings serve: taken by the commit
  work_again(*backend);
  EXPECT_EQ(hit(), 0);
  EXPECT_EQ(engine_->prefix_stats().kept_states, 0);
  ASSERT_FALSE(warnings_.empty());
  EXPECT_NE(warnings_.front().find("refused copy_boundary_rows"), std::string::npos) << warnings_.front();
  feeder.feed_to(writer, 500, 1);
  EXPECT_EQ(hit(), 384);
  feeder.release(writer);
  FedSequence warm = feeder.create(rows_, {ids_.begin(), ids_.begin() + 200});
  EXPECT_EQ(warm.length, 0) << "the unit is kept, its state is not";
  feeder.release(warm);
}

TEST_F(PrefixBackendFailureTest, AFailedLayerGivesTheStatesOfItsStepBack) {
  BackendSwap backend(*engine_);
  SequenceFeeder feeder(*engine_);
  const auto start = engine_->create_sequence(ids_, {});
  ASSERT_OK(start);
  const StepEntry entry{.sequence = start->sequence, .tokens = 500, .token_ids = ids_.data()};
  const auto step = engine_->prepare({&entry, 1});
  ASSERT_OK(step);
  fail(*backend, "keep_boundary_rows", StatusCode::kResourceExhausted);
  std::vector<Bf16Bits> out(rows_[0].size());
  EXPECT_EQ(engine_->forward_layer(*step, engine_->layers()[0], rows_[0].data(), out.data()).code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->commit(*step).code(), StatusCode::kFailedPrecondition);
  work_again(*backend);
  ASSERT_OK(engine_->cancel(*step));
  EXPECT_EQ(engine_->prefix_stats().kept_states, 0);
  ASSERT_OK(engine_->release(start->sequence));
  fill(feeder);
  expect_works(feeder);
}

// Boundaries that layers keep are in no graph: a step that has some runs eagerly even if it may be captured.
TEST_F(PrefixBackendFailureTest, AStepWithBoundariesInsideIsNotCaptured) {
  BackendSwap backend(*engine_);
  SequenceFeeder feeder(*engine_);
  const auto start = engine_->create_sequence(ids_, {});
  ASSERT_OK(start);
  const auto run = [&](std::int64_t from, std::int32_t tokens) {
    const StepEntry entry{.sequence = start->sequence, .tokens = tokens, .token_ids = ids_.data() + from};
    const auto step = engine_->prepare({&entry, 1}, {.pad_to_tokens = 0, .capture = true});
    ASSERT_OK(step);
    std::fill_n(engine_->input(), step->tokens * engine_->config().hidden_size, Bf16Bits{0});
    ASSERT_OK(engine_->step(*step, engine_->input(), [&](const LayerOutput& output) -> Status {
      backend->enqueue([&, output] {
        if (output.next_input != nullptr) {
          std::copy_n(output.output, step->tokens * engine_->config().hidden_size, output.next_input);
        }
      });
      return {};
    }));
    ASSERT_OK(engine_->commit(*step));
  };
  run(0, 300);
  EXPECT_EQ(engine_->graph_stats().eager_steps, 1);
  EXPECT_EQ(hit(), 256);
  run(300, 4);
  EXPECT_EQ(engine_->graph_stats().replays, 1);
}

// What the rings hold is not known any more.
TEST_F(PrefixBackendFailureTest, RingsThatMayBeHalfWrittenLatch) {
  for (const bool cut : {true, false}) {
    SCOPED_TRACE(cut ? "truncate" : "the rows that a long step will overwrite");
    const auto engine = make_engine([&] {
      EngineOptions options = SyntheticModel{.config = "tiny", .first_layer = 0, .layer_count = 3}.options();
      options.limits = {.max_sequences = 2,
                        .max_context_tokens = 600,
                        .max_step_tokens = 600,
                        .pool_tokens = 0,
                        .boundary_states = 8};
      options.prefix_cache.policy.interval_tokens = 1;
      options.poison_freed_blocks = false;
      return options;
    }());
    BackendSwap backend(*engine);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(rows_, ids_);
    feeder.feed_to(sequence, 300);
    fail(*backend, "copy_boundary_rows", StatusCode::kResourceExhausted);
    if (cut) {
      EXPECT_EQ(engine->truncate(sequence.id, 128).code(), StatusCode::kFaulted);
    } else {
      const StepEntry entry{.sequence = sequence.id, .tokens = 250, .token_ids = ids_.data() + 300};
      const auto step = engine->prepare({&entry, 1});
      ASSERT_OK(step);
      std::vector<Bf16Bits> out(rows_[0].size());
      EXPECT_EQ(engine->forward_layer(*step, engine->layers()[0], rows_[0].data(), out.data()).code(),
                StatusCode::kFaulted);
    }
    work_again(*backend);
    const Status later = engine->release(sequence.id);
    EXPECT_EQ(later.code(), StatusCode::kFaulted);
    EXPECT_NE(later.message().find("refused copy_boundary_rows"), std::string::npos) << later.message();
  }
}

TEST_F(PrefixBackendFailureTest, AFaultOfTheDeviceLatches) {
  BackendSwap backend(*engine_);
  SequenceFeeder feeder(*engine_);
  fill(feeder);
  fail(*backend, "copy_boundary_rows", StatusCode::kFaulted);
  EXPECT_EQ(engine_->create_sequence(ids_, {}).status().code(), StatusCode::kFaulted);
  work_again(*backend);
  EXPECT_EQ(engine_->create_sequence().status().code(), StatusCode::kFaulted);
}

}  // namespace
}  // namespace dsv4rt::test
