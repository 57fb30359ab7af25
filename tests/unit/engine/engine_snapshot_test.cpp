// Lessons 1 and 5: a sequence that was saved and restored continues as if nothing had happened, at every
// boundary, and whatever its next token needs is in the snapshot. (Damaged ones: sequence_snapshot_test.cpp.)
#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kDraftBudget = 5;
constexpr std::int64_t kContext = 560;

// {1 .. 9, 127 .. 130, 255 .. 257, 511 .. 513}: every residue mod 4, and both sides of every ratio, of the
// window and of a block.
const std::vector<std::int64_t> kLengths = {1,   2,   3,   4,   5,   6,   7,   8,   9,  127,
                                            128, 129, 130, 255, 256, 257, 511, 512, 513};

class EngineSnapshotTest : public testing::Test {
 protected:
  EngineSnapshotTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  // Poisoned: whoever reads a row of the block's or slot's previous owner gets NaN.
  [[nodiscard]] EngineOptions options(std::int32_t sequences = 4) const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = kDraftBudget;
    options.csa_rows_per_block = 16;  // 64 tokens
    options.hca_rows_per_block = 2;   // 256 tokens
    options.limits = {
        .max_sequences = sequences, .max_context_tokens = kContext, .max_step_tokens = kContext, .pool_tokens = 0};
    options.poison_freed_blocks = true;
    return options;
  }
  [[nodiscard]] LayerRows rows(std::uint64_t seed) const {
    return random_rows(seed, golden_.layers(), kContext, golden_.hidden());
  }
  static std::vector<std::byte> save(Engine& engine, const FedSequence& sequence) {
    auto snapshot = engine.save_sequence(sequence.id);
    EXPECT_OK(snapshot);
    EXPECT_EQ(engine.snapshot_bytes(sequence.id).value(), static_cast<std::int64_t>(snapshot->size()));
    return std::move(snapshot).value();
  }
  static FedSequence restore(Engine& engine, const FedSequence& origin, std::span<const std::byte> snapshot) {
    FedSequence restored = origin;
    const auto id = engine.restore_sequence(snapshot);
    EXPECT_OK(id);
    restored.id = id.value();
    return restored;
  }
  // Every slot and many blocks have had somebody else's rows; what is released later is poisoned anew.
  void use_up(SequenceFeeder& feeder, std::uint64_t sequences = 4) const {
    std::vector<FedSequence> others;
    for (std::uint64_t i = 0; i < sequences; ++i) {
      others.push_back(feeder.create(rows(90 + i)));
      feeder.feed_to(others.back(), 140);
    }
    for (const FedSequence& other : others) feeder.release(other);
  }
  // Decodes, a chunk, rejected drafts, a chunk.
  static void go_on(SequenceFeeder& feeder, FedSequence& sequence) {
    const std::int64_t start = sequence.length;
    feeder.feed_to(sequence, start + 3, 1);
    feeder.feed(sequence, 6);
    const FeedPart rejected{.sequence = &sequence, .tokens = 6, .rejected = kDraftBudget};
    feeder.step({&rejected, 1});
    feeder.feed_to(sequence, start + 11, 1);
    feeder.feed(sequence, 17);
  }
  void expect_same(SequenceFeeder& one, const FedSequence& a, SequenceFeeder& other, const FedSequence& b) const {
    ASSERT_EQ(a.length, b.length);
    EXPECT_TRUE(a.outputs == b.outputs) << "outputs differ";
    EXPECT_EQ(one.digests(a), other.digests(b));
  }
  // Feeds `one` and `other` the same, compares them and releases `one`.
  void expect_same_future(SequenceFeeder& feeder, FedSequence& one, FedSequence& other) const {
    go_on(feeder, one);
    go_on(feeder, other);
    ASSERT_FALSE(HasFatalFailure());
    expect_same(feeder, one, feeder, other);
    feeder.release(one);
  }

  GoldenCase golden_;
};

// In each of these tests one sequence grows from length to length and a fork of it is the run that is
// never interrupted: forks are the golden tests' business.

TEST_F(EngineSnapshotTest, Lesson1RestoredSequencesContinueAtEveryBoundary) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  use_up(feeder);
  FedSequence growing = feeder.create(rows(1));
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE("length " + std::to_string(length));
    feeder.feed_to(growing, length, 100);
    const auto snapshot = save(*engine, growing);
    FedSequence restored = restore(*engine, growing, snapshot);
    EXPECT_EQ(engine->length(restored.id).value(), length);
    expect_same(feeder, restored, feeder, growing);
    EXPECT_EQ(save(*engine, restored), snapshot) << "equal caches give equal snapshots";
    FedSequence plain = feeder.fork(growing);
    go_on(feeder, plain);
    go_on(feeder, restored);
    ASSERT_FALSE(HasFatalFailure());
    expect_same(feeder, restored, feeder, plain);
    EXPECT_EQ(save(*engine, restored), save(*engine, plain));
    feeder.release(plain);
    feeder.release(restored);
  }
  // Longer than the window: not one of the rows that the snapshot brought into the rings is left.
  feeder.truncate(growing, 0);
  feeder.feed_to(growing, 9);
  FedSequence restored = restore(*engine, growing, save(*engine, growing));
  feeder.feed_to(growing, 300);
  feeder.feed_to(restored, 300, 150);
  expect_same(feeder, restored, feeder, growing);
}

// The step after a restore verifies drafts and rejects them all, or all but one.
TEST_F(EngineSnapshotTest, Lesson1RollbackRightAfterARestore) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  use_up(feeder);
  FedSequence growing = feeder.create(rows(2));
  for (const std::int64_t length : kLengths) {
    feeder.feed_to(growing, length);
    const auto snapshot = save(*engine, growing);
    for (const std::int64_t accepted : {0, 1}) {
      SCOPED_TRACE("length " + std::to_string(length) + ", accepted " + std::to_string(accepted));
      FedSequence restored = restore(*engine, growing, snapshot);
      const FeedPart drafts{.sequence = &restored, .tokens = accepted + kDraftBudget, .rejected = kDraftBudget};
      feeder.step({&drafts, 1});
      FedSequence plain = feeder.fork(growing);
      feeder.feed_to(plain, length + 12, 4);
      feeder.feed_to(restored, length + 12, 5);
      ASSERT_FALSE(HasFatalFailure());
      expect_same(feeder, restored, feeder, plain);
      feeder.release(plain);
      feeder.release(restored);
    }
  }
}

// Saved in the middle of a block, with rejected tokens' rows still in the rings: they do not show.
TEST_F(EngineSnapshotTest, Lesson1SnapshotsAfterARollbackHoldNoRejectedRow) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  use_up(feeder);
  FedSequence growing = feeder.create(rows(3));
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE("length " + std::to_string(length));
    feeder.feed_to(growing, length - 1);
    FedSequence rolled_back = feeder.fork(growing);
    const FeedPart drafts{.sequence = &rolled_back, .tokens = 1 + kDraftBudget, .rejected = kDraftBudget};
    feeder.step({&drafts, 1});
    feeder.feed_to(growing, length);
    ASSERT_FALSE(HasFatalFailure());
    const auto snapshot = save(*engine, rolled_back);
    EXPECT_EQ(snapshot, save(*engine, growing));
    FedSequence restored = restore(*engine, rolled_back, snapshot);
    expect_same_future(feeder, restored, rolled_back);
    feeder.release(rolled_back);
  }
}

// Lesson 5: everything a restored sequence may be cut to is there as well; beyond it, truncation is refused.
TEST_F(EngineSnapshotTest, Lesson5TruncationAfterARestoreReachesNoMissingRow) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  use_up(feeder);
  FedSequence whole = feeder.create(rows(4));
  feeder.feed_to(whole, 280);
  FedSequence growing = feeder.create(rows(4));
  int truncated = 0;
  for (const std::int64_t length : {3, 7, 9, 127, 130, 257}) {
    feeder.feed_to(growing, length);
    const auto snapshot = save(*engine, growing);
    for (std::int64_t back = 1; back <= std::min<std::int64_t>(length, 9); ++back) {
      SCOPED_TRACE(std::to_string(length) + " back by " + std::to_string(back));
      FedSequence restored = restore(*engine, growing, snapshot);
      const Status status = engine->truncate(restored.id, length - back);
      if (status.ok()) {
        ++truncated;
        restored.length = length - back;
        restored.outputs = slice_rows(restored.outputs, 0, restored.length, golden_.hidden());
        feeder.feed_to(restored, length + 20, 6);
        ASSERT_FALSE(HasFatalFailure());
        EXPECT_TRUE(restored.outputs == slice_rows(whole.outputs, 0, length + 20, golden_.hidden()));
      } else {
        EXPECT_TRUE(fails_with(status, StatusCode::kFailedPrecondition, {"earliest length possible"}));
      }
      feeder.release(restored);
    }
  }
  EXPECT_GT(truncated, 5);
}

TEST_F(EngineSnapshotTest, Lesson1ForksAreSavedOnTheirOwn) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  for (const std::int64_t length : {5, 130, 258}) {
    SCOPED_TRACE("length " + std::to_string(length));
    FedSequence parent = feeder.create(rows(5));
    feeder.feed_to(parent, length);
    FedSequence child = feeder.fork(parent);
    const auto snapshot = save(*engine, child);
    EXPECT_EQ(snapshot, save(*engine, parent));
    FedSequence restored = restore(*engine, child, snapshot);
    FedSequence grandchild = feeder.fork(restored);
    for (FedSequence* sequence : {&restored, &child, &grandchild, &parent}) go_on(feeder, *sequence);
    ASSERT_FALSE(HasFatalFailure());
    for (const FedSequence* sequence : {&child, &restored, &grandchild}) {
      expect_same(feeder, *sequence, feeder, parent);
      feeder.release(*sequence);
    }
    feeder.release(parent);
  }
}

// Another engine of the same checkpoint: its blocks, rings, limits and threads are its own affair.
TEST_F(EngineSnapshotTest, OtherLimitsAndBlockSizesReadTheSameSnapshot) {
  const auto saver = make_engine(options());
  SequenceFeeder feeder(*saver);
  for (const std::int32_t draft_budget : {0, 9}) {
    EngineOptions other = options(1);
    other.draft_budget_tokens = draft_budget;
    other.csa_rows_per_block = 64;
    other.hca_rows_per_block = 4;
    other.threads = 2;
    other.limits.max_context_tokens = 400;
    const auto engine = make_engine(other);
    SequenceFeeder elsewhere(*engine);
    for (const std::int64_t length : {6, 129, 257}) {
      SCOPED_TRACE("draft budget " + std::to_string(draft_budget) + ", length " + std::to_string(length));
      FedSequence plain = feeder.create(rows(6));
      feeder.feed_to(plain, length);
      const auto snapshot = save(*saver, plain);
      FedSequence restored = restore(*engine, plain, snapshot);
      EXPECT_EQ(save(*engine, restored), snapshot);
      feeder.feed_to(plain, length + 30, 15);
      elsewhere.feed_to(restored, length + 30, 11);
      ASSERT_FALSE(HasFatalFailure());
      expect_same(elsewhere, restored, feeder, plain);
      feeder.release(plain);
      elsewhere.release(restored);
    }
  }
}

TEST_F(EngineSnapshotTest, EveryFormatAndASubsetOfLayers) {
  const struct {
    RowFormat rows;
    IndexKeyFormat keys;
    std::int32_t first_layer;
  } cases[] = {{RowFormat::kFp8Row, IndexKeyFormat::kNvfp4, 0},
               {RowFormat::kNvfp4, IndexKeyFormat::kFp8, 0},
               {RowFormat::kBf16, IndexKeyFormat::kBf16, 1}};
  for (const auto& format : cases) {
    SCOPED_TRACE(std::string(row_format_name(format.rows)) + ", " + std::string(index_key_format_name(format.keys)));
    EngineOptions formats = options();
    formats.row_format = format.rows;
    formats.index_format = format.keys;
    formats.first_layer = format.first_layer;
    formats.layer_count = 0;
    const auto engine = make_engine(formats);
    SequenceFeeder feeder(*engine);
    FedSequence plain = feeder.create(rows(7));
    feeder.feed_to(plain, 130);
    use_up(feeder, 3);
    FedSequence restored = restore(*engine, plain, save(*engine, plain));
    expect_same_future(feeder, restored, plain);
  }
}

TEST_F(EngineSnapshotTest, EmptySequencesAndReservations) {
  EngineOptions small = options();
  small.limits.pool_tokens = kContext;
  const auto engine = make_engine(small);
  SequenceFeeder feeder(*engine);
  FedSequence empty = feeder.create(rows(8));
  const auto nothing = save(*engine, empty);
  FedSequence fed = feeder.create(rows(8));
  feeder.feed_to(fed, 300);
  const auto snapshot = save(*engine, fed);
  FedSequence restored = restore(*engine, empty, nothing);
  feeder.feed_to(restored, 5);
  feeder.release(restored);
  feeder.release(empty);
  // The pools have room for kContext tokens and a bit.
  EXPECT_TRUE(fails_with(engine->restore_sequence(snapshot, kContext), StatusCode::kResourceExhausted,
                         {"restore_sequence needs"}));
  EXPECT_TRUE(fails_with(engine->restore_sequence(snapshot, kContext + 1), StatusCode::kInvalidArgument, {"561"}));
  feeder.release(fed);
  const auto reserved = engine->restore_sequence(snapshot, kContext);
  ASSERT_OK(reserved);
  EXPECT_FALSE(engine->can_admit(kContext).ok());
  FedSequence again{.id = *reserved, .inputs = rows(8), .outputs = LayerRows(3), .length = 300};
  feeder.feed_to(again, kContext);
}

TEST_F(EngineSnapshotTest, SinksGetBoundedPartsAndMayFail) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(rows(9));
  feeder.feed_to(sequence, 513);
  const auto snapshot = save(*engine, sequence);
  std::size_t largest = 0;
  std::vector<std::byte> streamed;
  ASSERT_OK(engine->save_sequence(sequence.id, [&](std::span<const std::byte> bytes) -> Status {
    largest = std::max(largest, bytes.size());
    streamed.insert(streamed.end(), bytes.begin(), bytes.end());
    return {};
  }));
  EXPECT_EQ(streamed, snapshot);
  const std::size_t hca_ring_bytes = std::size_t{(128 + kDraftBudget)} * 2 * 512 * sizeof(float);
  EXPECT_LE(largest, hca_ring_bytes) << "no part is larger than the largest block or ring";
  for (int accepted : {0, 1, 7}) {
    const Status status = engine->save_sequence(sequence.id, [&](std::span<const std::byte>) -> Status {
      if (accepted-- > 0) return {};
      return {StatusCode::kResourceExhausted, "the disk is full"};
    });
    EXPECT_TRUE(fails_with(status, StatusCode::kResourceExhausted, {"the disk is full"}));
  }
  EXPECT_TRUE(fails_with(engine->save_sequence(sequence.id, SnapshotSink()), StatusCode::kInvalidArgument, {"sink"}));
  EXPECT_EQ(save(*engine, sequence), snapshot);
}

TEST_F(EngineSnapshotTest, OnlyLiveSequencesBetweenSteps) {
  const auto engine = make_engine(options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(rows(10));
  feeder.feed_to(sequence, 9);
  const auto snapshot = save(*engine, sequence);
  const StepEntry entry{sequence.id, 1};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  EXPECT_TRUE(fails_with(engine->save_sequence(sequence.id), StatusCode::kFailedPrecondition, {"outstanding"}));
  EXPECT_TRUE(fails_with(engine->snapshot_bytes(sequence.id), StatusCode::kFailedPrecondition, {"outstanding"}));
  EXPECT_TRUE(fails_with(engine->restore_sequence(snapshot), StatusCode::kFailedPrecondition, {"outstanding"}));
  ASSERT_OK(engine->cancel(*step));
  feeder.release(sequence);
  EXPECT_TRUE(fails_with(engine->save_sequence(sequence.id), StatusCode::kStaleHandle, {}));
}

}  // namespace
}  // namespace dsv4rt::test
