// Speculative decoding: draft tokens that are verified and partly rejected leave no trace.
#include <random>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kDraftBudgetTokens = 7;  // verify steps of up to 8 tokens

class SpeculativeGolden : public testing::TestWithParam<const char*> {
 protected:
  SpeculativeGolden() : golden_(GoldenCase::open(GetParam())) {
    const auto engine = make_engine(golden_.options());
    SequenceFeeder feeder(*engine);
    plain_ = feeder.create(golden_.inputs);
    feeder.feed_to(plain_, golden_.tokens());
    digests_ = feeder.digests(plain_);
  }

  // Rejected tokens need rows of context beyond the accepted ones.
  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = kDraftBudgetTokens;
    options.limits.max_context_tokens += kDraftBudgetTokens;
    options.limits.max_step_tokens += 3 * kDraftBudgetTokens;
    return options;
  }

  void expect_plain(SequenceFeeder& feeder, const FedSequence& sequence) const {
    ASSERT_EQ(sequence.length, golden_.tokens());
    const auto digests = feeder.digests(sequence);
    for (std::size_t layer = 0; layer < digests_.size(); ++layer) {
      EXPECT_TRUE(sequence.outputs[layer] == plain_.outputs[layer]) << "outputs differ in layer " << layer;
      EXPECT_EQ(digests[layer], digests_[layer]) << "cache contents differ in layer " << layer;
    }
  }

  GoldenCase golden_;
  FedSequence plain_;                 // decoded without drafts, rings without padding
  std::vector<std::string> digests_;  // digests of its cache, one a layer
};

TEST_P(SpeculativeGolden, RejectedDraftsLeaveNoTrace) {
  for (const std::int64_t width : {2, 3, 4, 5, 8}) {
    SCOPED_TRACE("verify width " + std::to_string(width));
    std::mt19937 random(static_cast<unsigned>(width));
    const auto engine = make_engine(options());
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    std::int64_t rejections = 0;
    while (sequence.length < golden_.tokens()) {
      std::int64_t rejected = static_cast<std::int64_t>(random() % static_cast<unsigned>(width));
      const std::int64_t accepted = std::min(width - rejected, golden_.tokens() - sequence.length);
      rejected = width - accepted > kDraftBudgetTokens ? kDraftBudgetTokens : width - accepted;
      rejections += rejected;
      const FeedPart part{.sequence = &sequence, .tokens = accepted + rejected, .rejected = rejected};
      feeder.step({&part, 1});
      ASSERT_FALSE(HasFatalFailure());
    }
    EXPECT_GT(rejections, golden_.tokens() / 16);
    expect_plain(feeder, sequence);
  }
}

// Prefill up to a boundary, then one verify step whose drafts are all wrong but the first; again and
// again at every residue around it. (Engines answered wrong for one residue mod 4, or at token 129.)
TEST_P(SpeculativeGolden, RollbackAtEveryBoundary) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  for (const std::int64_t start : {1, 2, 3, 4, 5, 6, 7, 8, 124, 125, 126, 127, 128, 129, 130, 254, 255, 256, 257}) {
    SCOPED_TRACE("from " + std::to_string(start));
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, start);
    for (std::int64_t accepted = 0; accepted <= 2; ++accepted) {
      const std::int64_t rejected = kDraftBudgetTokens;
      const FeedPart part{.sequence = &sequence, .tokens = accepted + rejected, .rejected = rejected};
      feeder.step({&part, 1});
      ASSERT_FALSE(HasFatalFailure());
    }
    feeder.feed_to(sequence, golden_.tokens(), 61);
    expect_plain(feeder, sequence);
    feeder.release(sequence);
  }
}

// A long prefill chunk may be rejected in part as well, within the budget.
TEST_P(SpeculativeGolden, TailOfAPrefillChunkIsRejected) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  const FeedPart long_chunk{.sequence = &sequence, .tokens = 300, .rejected = kDraftBudgetTokens};
  feeder.step({&long_chunk, 1});
  const FeedPart short_chunk{.sequence = &sequence, .tokens = 10, .rejected = 3};
  feeder.step({&short_chunk, 1});
  feeder.feed_to(sequence, golden_.tokens());
  expect_plain(feeder, sequence);
}

// More than the budget is refused, and nothing has changed: the step can still be committed.
TEST_P(SpeculativeGolden, RejectingBeyondTheBudgetIsRefused) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs);
  feeder.feed_to(sequence, 200);
  const StepEntry entry{sequence.id, 20};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  const auto x = slice_rows(golden_.inputs, 200, 20, golden_.hidden());
  std::vector<Bf16Bits> out(x[0].size());
  for (std::size_t i = 0; i < engine->layers().size(); ++i) {
    ASSERT_OK(engine->forward_layer_from_host(*step, engine->layers()[i], x[i].data(), out.data()));
    sequence.outputs[i].insert(sequence.outputs[i].end(), out.begin(), out.end());
  }
  const std::int32_t too_few = 20 - kDraftBudgetTokens - 6;
  EXPECT_TRUE(fails_with(engine->commit(*step, {&too_few, 1}), StatusCode::kInvalidArgument, {}));
  const std::int32_t negative = -1;
  EXPECT_TRUE(fails_with(engine->commit(*step, {&negative, 1}), StatusCode::kInvalidArgument, {}));
  const std::int32_t too_many = 21;
  EXPECT_TRUE(fails_with(engine->commit(*step, {&too_many, 1}), StatusCode::kInvalidArgument, {}));
  ASSERT_OK(engine->commit(*step));
  sequence.length += 20;
  feeder.feed_to(sequence, golden_.tokens());
  expect_plain(feeder, sequence);
}

// Several sequences verify in one step, each with its own number of accepted tokens.
TEST_P(SpeculativeGolden, VerifyBatchesKeepSequencesApart) {
  EngineOptions batched = options();
  batched.limits.max_sequences = 3;
  const auto engine = make_engine(batched);
  SequenceFeeder feeder(*engine);
  std::mt19937 random(5);
  std::vector<FedSequence> sequences;
  for (int i = 0; i < 3; ++i) sequences.push_back(feeder.create(golden_.inputs));
  // Different lengths, so that blocks complete at different rows of x.
  feeder.feed_to(sequences[0], 126);
  feeder.feed_to(sequences[1], 3);
  while (std::any_of(sequences.begin(), sequences.end(), [&](const auto& s) { return s.length < golden_.tokens(); })) {
    std::vector<FeedPart> parts;
    for (FedSequence& sequence : sequences) {
      const std::int64_t left = golden_.tokens() - sequence.length;
      if (left == 0) continue;
      const std::int64_t accepted = std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(random() % 7));
      const std::int64_t rejected = static_cast<std::int64_t>(random() % (kDraftBudgetTokens + 1));
      parts.push_back({&sequence, accepted + rejected, rejected});
    }
    feeder.step(parts);
    ASSERT_FALSE(HasFatalFailure());
  }
  for (const FedSequence& sequence : sequences) expect_plain(feeder, sequence);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, SpeculativeGolden, testing::Values("tiny-fp8", "tiny-bf16"),
                         [](const auto& info) {
                           return std::string(info.param) == "tiny-fp8" ? "TinyFp8" : "TinyBf16";
                         });

}  // namespace
}  // namespace dsv4rt::test
