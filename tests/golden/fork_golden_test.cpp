// Lesson 3: a short sequence in a used slot must not see the rows of the sequence before it.
// Forks, truncation and reused slots: a sequence behaves as if it had always been alone.
#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kBranchTokens = 140;  // longer than the window: every cached row gets replaced or reread

class ForkGolden : public testing::TestWithParam<const char*> {
 protected:
  ForkGolden() : golden_(GoldenCase::open(GetParam())) {}

  [[nodiscard]] EngineOptions options(std::int32_t sequences) const {
    EngineOptions options = golden_.options();
    options.limits.max_sequences = sequences;
    options.limits.max_context_tokens = golden_.tokens() + kBranchTokens;
    options.limits.max_step_tokens = static_cast<std::int32_t>(golden_.tokens() + kBranchTokens);
    // Small blocks: forks share full and partly filled ones.
    options.csa_rows_per_block = 32;
    options.hca_rows_per_block = 2;
    return options;
  }

  // The first `position` tokens of the trace, then unrelated ones.
  [[nodiscard]] LayerRows branch_inputs(std::int64_t position, std::uint64_t seed) const {
    return join_rows(slice_rows(golden_.inputs, 0, position, golden_.hidden()),
                     random_rows(seed, golden_.layers(), kBranchTokens, golden_.hidden()));
  }

  // `sequence` holds the same bytes as one that was fed its inputs at once in an engine of its own.
  void expect_as_alone(SequenceFeeder& feeder, const FedSequence& sequence) const {
    const auto engine = make_engine(options(1));
    SequenceFeeder alone(*engine);
    FedSequence expected = alone.create(sequence.inputs);
    alone.feed_to(expected, sequence.length);
    EXPECT_TRUE(sequence.outputs == expected.outputs) << "outputs differ";
    EXPECT_EQ(feeder.digests(sequence), alone.digests(expected));
  }

  GoldenCase golden_;
};

TEST_P(ForkGolden, BothBranchesContinueAsIfAlone) {
  const auto engine = make_engine(options(2));
  SequenceFeeder feeder(*engine);
  for (const std::int64_t position : {3, 4, 5, 7, 8, 127, 128, 129, 130, 255, 256, 257, 511, 512, 513}) {
    if (position > golden_.tokens()) continue;
    SCOPED_TRACE("fork at " + std::to_string(position));
    FedSequence parent = feeder.create(branch_inputs(position, 1));
    feeder.feed_to(parent, position, 100);
    FedSequence child = feeder.fork(parent);
    child.inputs = branch_inputs(position, 2);
    // The two are fed in turn, then in one step, so that copy-on-write happens in both and in either order.
    feeder.feed(child, 1);
    feeder.feed(parent, 2);
    const FeedPart parts[] = {{&parent, 30}, {&child, 37}};
    feeder.step(parts);
    feeder.feed_to(parent, position + kBranchTokens, 13);
    feeder.feed_to(child, position + kBranchTokens, 50);
    ASSERT_FALSE(HasFatalFailure());
    expect_as_alone(feeder, parent);
    expect_as_alone(feeder, child);
    feeder.release(parent);
    feeder.release(child);
  }
}

TEST_P(ForkGolden, BothBranchesWriteTheSharedBlockInOneStep) {
  const auto engine = make_engine(options(3));
  SequenceFeeder feeder(*engine);
  for (const std::int64_t position : {6, 131, 140}) {
    SCOPED_TRACE("fork at " + std::to_string(position));
    FedSequence parent = feeder.create(branch_inputs(position, 1));
    feeder.feed_to(parent, position);
    FedSequence child = feeder.fork(parent);
    child.inputs = branch_inputs(position, 2);
    FedSequence grandchild = feeder.fork(child);
    grandchild.inputs = branch_inputs(position, 3);
    const FeedPart parts[] = {{&child, 5}, {&grandchild, 6}, {&parent, 7}};
    feeder.step(parts);
    ASSERT_FALSE(HasFatalFailure());
    for (FedSequence* sequence : {&parent, &child, &grandchild}) {
      feeder.feed_to(*sequence, position + kBranchTokens, 71);
      expect_as_alone(feeder, *sequence);
      feeder.release(*sequence);
    }
  }
}

TEST_P(ForkGolden, ChildOutlivesItsParent) {
  const auto engine = make_engine(options(2));
  SequenceFeeder feeder(*engine);
  FedSequence parent = feeder.create(branch_inputs(130, 1));
  feeder.feed_to(parent, 130);
  FedSequence child = feeder.fork(parent);
  feeder.release(parent);
  // The parent's slot and blocks go to somebody else at once.
  FedSequence other = feeder.create(branch_inputs(0, 9));
  const FeedPart parts[] = {{&other, 100}, {&child, 100}};
  feeder.step(parts);
  ASSERT_FALSE(HasFatalFailure());
  expect_as_alone(feeder, other);
  expect_as_alone(feeder, child);
}

// Back by up to the draft budget, then on with other tokens.
TEST_P(ForkGolden, TruncatedSequencesContinueAsIfAlone) {
  EngineOptions options = this->options(1);
  options.draft_budget_tokens = 5;
  const auto engine = make_engine(options);
  SequenceFeeder feeder(*engine);
  for (const std::int64_t position : {3, 4, 5, 7, 8, 127, 128, 129, 130, 255, 256, 257}) {
    for (const std::int64_t back : {1, 3, 5}) {
      if (back >= position) continue;
      SCOPED_TRACE("truncate " + std::to_string(position) + " by " + std::to_string(back));
      FedSequence sequence = feeder.create(branch_inputs(position, 1));
      feeder.feed_to(sequence, position);
      feeder.truncate(sequence, position - back);
      sequence.inputs = branch_inputs(position - back, 2);
      feeder.feed_to(sequence, position + 20, 7);
      ASSERT_FALSE(HasFatalFailure());
      expect_as_alone(feeder, sequence);
      feeder.release(sequence);
    }
  }
}

TEST_P(ForkGolden, TruncatingToNothingStartsAfresh) {
  const auto engine = make_engine(options(1));
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 300);
  feeder.truncate(sequence, 0);
  sequence.inputs = branch_inputs(0, 4);
  feeder.feed_to(sequence, 3);
  expect_as_alone(feeder, sequence);
  feeder.feed_to(sequence, 140, 9);
  expect_as_alone(feeder, sequence);
}

// The published reference keeps the overlap rows of whoever had the slot before.
TEST_P(ForkGolden, ShortSequenceInAReusedSlotSeesNothingOfItsPredecessor) {
  const auto engine = make_engine(options(1));
  SequenceFeeder feeder(*engine);
  for (const std::int64_t before : {3, 4, 6, 8, 127, 131, 260}) {
    for (const std::int64_t tokens : {1, 2, 3, 4, 5}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens after " + std::to_string(before));
      FedSequence predecessor = feeder.create(golden_.inputs);
      feeder.feed_to(predecessor, before);
      feeder.release(predecessor);
      FedSequence sequence = feeder.create(branch_inputs(0, 5));
      feeder.feed_to(sequence, tokens, tokens % 2 == 0 ? 1 : 0);
      ASSERT_FALSE(HasFatalFailure());
      expect_as_alone(feeder, sequence);
      feeder.release(sequence);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ForkGolden, testing::Values("tiny-fp8", "tiny-bf16"), [](const auto& info) {
  return std::string(info.param) == "tiny-fp8" ? "TinyFp8" : "TinyBf16";
});

}  // namespace
}  // namespace dsv4rt::test
