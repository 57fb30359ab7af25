// A snapshot and the increments on it are as good as one of the whole sequence, and nothing else passes for one.
#include <algorithm>
#include <stdexcept>

#include <gtest/gtest.h>

#include "engine/sequence_snapshot.h"
#include "layout/bytes.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

using Bytes = std::vector<std::byte>;

Bytes operator+(Bytes one, const Bytes& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

class SnapshotIncrement : public testing::Test {
 protected:
  static constexpr std::int64_t kContext = 560;
  static constexpr std::int32_t kDraftBudget = 3;

  explicit SnapshotIncrement(std::int32_t first_layer = 0, std::int32_t layer_count = 0)
      : golden_(GoldenCase::open("tiny-bf16", first_layer, layer_count)),
        engine_(make_engine(options())),
        feeder_(*engine_) {}

  // Poisoned: whoever reads a row of the block's or slot's previous owner gets NaN.
  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = kDraftBudget;
    options.csa_rows_per_block = 16;  // 64 tokens
    options.hca_rows_per_block = 2;   // 256 tokens
    options.limits = {
        .max_sequences = 4, .max_context_tokens = kContext, .max_step_tokens = kContext, .pool_tokens = 0};
    options.poison_freed_blocks = true;
    return options;
  }
  FedSequence fed(std::int64_t length, std::uint64_t seed = 1) {
    FedSequence sequence = feeder_.create(random_rows(seed, golden_.layers(), kContext, golden_.hidden()));
    if (length > 0) feeder_.feed_to(sequence, length, 100);
    return sequence;
  }
  Bytes save(SequenceId sequence, std::int64_t base_tokens = 0, std::span<const std::byte> key = {}) {
    const SnapshotOptions options{.key = key, .base_tokens = base_tokens};
    const auto bytes = engine_->snapshot_bytes(sequence, options);
    auto saved = engine_->save_sequence(sequence, options);
    EXPECT_OK(saved);
    EXPECT_EQ(bytes.value(), static_cast<std::int64_t>(saved->size()));
    return std::move(saved).value();
  }
  std::int64_t saved_tokens(SequenceId sequence) { return engine_->sequence_state(sequence).value().saved_tokens; }
  // As the whole sequence is saved, without becoming what the next increment adds to.
  Bytes whole(const FedSequence& sequence) {
    const SequenceId twin = engine_->fork(sequence.id).value();
    Bytes snapshot = save(twin);
    EXPECT_OK(engine_->release(twin));
    return snapshot;
  }
  // What is saved of a sequence that `snapshot` makes.
  Bytes as_restored(const Bytes& snapshot) {
    const SequenceId sequence = engine_->restore_sequence(snapshot).value();
    Bytes saved = save(sequence);
    EXPECT_OK(engine_->release(sequence));
    return saved;
  }
  void expect_refused(const Bytes& snapshot, StatusCode code, std::initializer_list<std::string_view> parts,
                      std::span<const std::byte> key = {}) {
    EXPECT_TRUE(fails_with(engine_->restore_sequence(snapshot, 0, {.key = key}), code, parts));
    EXPECT_TRUE(fails_with(engine_->restore_sequence_from(source_of(snapshot, 4096), 0, {.key = key}), code, parts));
  }
  // Gives at most `part` bytes at a time.
  static SnapshotSource source_of(const Bytes& snapshot, std::size_t part) {
    return [&snapshot, part, at = std::size_t{0}](std::span<std::byte> buffer) mutable -> Result<std::size_t> {
      const std::size_t bytes = std::min({part, buffer.size(), snapshot.size() - at});
      std::copy_n(snapshot.begin() + static_cast<std::ptrdiff_t>(at), bytes, buffer.begin());
      at += bytes;
      return bytes;
    };
  }
  // No slot and no block is missing.
  void expect_all_free() {
    const EngineState state = engine_->state().value();
    EXPECT_EQ(state.live_sequences, 0);
    for (const RoleState& role : state.roles) EXPECT_EQ(role.used_blocks, 0);
  }

  GoldenCase golden_;
  std::unique_ptr<Engine> engine_;
  SequenceFeeder feeder_;
};

TEST_F(SnapshotIncrement, AChainRestoresWhatAWholeSnapshotDoesAtEveryBoundary) {
  EngineOptions other_options = options();
  other_options.csa_rows_per_block = 64;
  other_options.draft_budget_tokens = 9;
  const auto other = make_engine(other_options);
  SequenceFeeder elsewhere(*other);
  FedSequence growing = fed(1);
  Bytes chain = save(growing.id);
  // Both sides of every ratio, of the window and of a block; twice the same: an increment without rows.
  for (const std::int64_t length : {1, 2, 4, 5, 9, 127, 128, 130, 130, 255, 256, 257, 510, 513}) {
    SCOPED_TRACE("length " + std::to_string(length));
    if (length > growing.length) feeder_.feed_to(growing, length, 50);
    const std::int64_t base = saved_tokens(growing.id);
    chain = chain + save(growing.id, base);
    EXPECT_EQ(saved_tokens(growing.id), length);
    const Bytes complete = whole(growing);

    const SequenceId restored = engine_->restore_sequence(chain).value();
    EXPECT_EQ(engine_->length(restored).value(), length);
    EXPECT_EQ(save(restored), complete);
    ASSERT_OK(engine_->release(restored));

    FedSequence again = growing;
    again.id = other->restore_sequence_from(source_of(chain, 777)).value();
    FedSequence plain = feeder_.fork(growing);
    const std::int64_t further = std::min<std::int64_t>(length + 30, kContext);
    feeder_.feed_to(plain, further, 7);
    elsewhere.feed_to(again, further, 4);
    EXPECT_TRUE(plain.outputs == again.outputs);
    EXPECT_EQ(elsewhere.digests(again), feeder_.digests(plain));
    feeder_.release(plain);
    elsewhere.release(again);
  }
}

TEST_F(SnapshotIncrement, HoldsTheNewRowsAndTheRingsOnly) {
  FedSequence sequence = fed(512);
  const Bytes all = save(sequence.id);
  const Bytes nothing_new = save(sequence.id, 512);
  feeder_.feed_to(sequence, 516, 1);
  const Bytes one_row = save(sequence.id, 512);
  // One CSA row of 584 bytes and one index key of 68, and what HCA has of a row for 128 tokens: pairs of 512 floats.
  EXPECT_EQ(one_row.size(), nothing_new.size() + 584 + 68 + 4 * 2 * 512 * sizeof(float));
  EXPECT_LT(nothing_new.size(), all.size() - 512 / 4 * (584 + 68));
}

// It goes on from the restored end, in this engine or another; forks too; rejected drafts do not count.
TEST_F(SnapshotIncrement, GoesOnAfterARestoreAForkAndRejectedDrafts) {
  FedSequence sequence = fed(130);
  const Bytes base = save(sequence.id);
  FedSequence child = feeder_.fork(sequence);
  EXPECT_EQ(saved_tokens(child.id), 130);
  const FeedPart drafts{.sequence = &child, .tokens = 1 + kDraftBudget, .rejected = kDraftBudget};
  feeder_.step({&drafts, 1});
  feeder_.feed_to(child, 260, 13);
  const Bytes to_260 = save(child.id, 130);
  EXPECT_EQ(as_restored(base + to_260), whole(child));

  const auto other = make_engine(options());
  SequenceFeeder elsewhere(*other);
  FedSequence moved = child;
  moved.id = other->restore_sequence(base + to_260).value();
  EXPECT_EQ(other->sequence_state(moved.id)->saved_tokens, 260);
  elsewhere.feed_to(moved, 300);
  const auto to_300 = other->save_sequence(moved.id, {.base_tokens = 260});
  ASSERT_OK(to_300);
  feeder_.feed_to(child, 300);
  EXPECT_EQ(as_restored(base + to_260 + *to_300), whole(child));
}

TEST_F(SnapshotIncrement, OnlyWhatIsStillTheBeginningIsAddedTo) {
  FedSequence sequence = fed(100);
  const auto refused = [&](std::int64_t base_tokens, StatusCode code, std::initializer_list<std::string_view> parts) {
    EXPECT_TRUE(
        fails_with(engine_->save_sequence(sequence.id, SnapshotOptions{.base_tokens = base_tokens}), code, parts));
    EXPECT_TRUE(fails_with(engine_->snapshot_bytes(sequence.id, {.base_tokens = base_tokens}), code, parts));
  };
  refused(100, StatusCode::kFailedPrecondition, {"base_tokens = 100", "nothing saved", "0 (all of it)"});
  refused(-1, StatusCode::kInvalidArgument, {"base_tokens = -1"});
  const Bytes first = save(sequence.id);
  refused(99, StatusCode::kFailedPrecondition, {"base_tokens = 99", "accepted: 100"});

  // A save that fails is none, and the one before it still counts.
  feeder_.feed_to(sequence, 104);
  int parts_left = 3;
  const auto full = [&](std::span<const std::byte>) -> Status {
    return parts_left-- > 0 ? Status{} : Status{StatusCode::kResourceExhausted, "the disk is full"};
  };
  EXPECT_TRUE(fails_with(engine_->save_sequence(sequence.id, full, {.base_tokens = 100}),
                         StatusCode::kResourceExhausted, {"the disk is full"}));
  EXPECT_EQ(saved_tokens(sequence.id), 100);

  // Cut, but not below what was saved; then below, to a length at which other tokens follow.
  ASSERT_OK(engine_->truncate(sequence.id, 102));
  EXPECT_EQ(saved_tokens(sequence.id), 100);
  sequence.length = 102;
  sequence.outputs = slice_rows(sequence.outputs, 0, 102, golden_.hidden());
  EXPECT_EQ(as_restored(first + save(sequence.id, 100)), whole(sequence));
  EXPECT_EQ(saved_tokens(sequence.id), 102);
  ASSERT_OK(engine_->truncate(sequence.id, 101));
  EXPECT_EQ(saved_tokens(sequence.id), 0);
  refused(102, StatusCode::kFailedPrecondition, {"nothing saved"});

  // Emptied, and a new owner of the slot.
  save(sequence.id);
  ASSERT_OK(engine_->truncate(sequence.id, 0));
  EXPECT_EQ(saved_tokens(sequence.id), 0);
  ASSERT_OK(engine_->release(sequence.id));
  sequence = fed(102);
  EXPECT_EQ(saved_tokens(sequence.id), 0);
}

// A step that runs over the rings and is cancelled empties its sequence.
TEST_F(SnapshotIncrement, ACancelledStepThatEmptiesASequenceForgetsWhatWasSaved) {
  FedSequence sequence = fed(100);
  save(sequence.id);
  const StepEntry entry{sequence.id, 200};
  const Step step = engine_->prepare({&entry, 1}).value();
  const LayerId layer = engine_->layers()[0];
  std::vector<Bf16Bits> out(static_cast<std::size_t>(200 * golden_.hidden()));
  const std::vector<Bf16Bits> x(out.size());
  ASSERT_OK(engine_->forward_layer_from_host(step, layer, x.data(), out.data()));
  ASSERT_EQ(engine_->cancel(step).value().size(), 1U);
  EXPECT_EQ(saved_tokens(sequence.id), 0);
  EXPECT_TRUE(fails_with(engine_->save_sequence(sequence.id, SnapshotOptions{.base_tokens = 100}),
                         StatusCode::kFailedPrecondition, {"nothing saved"}));
}

TEST_F(SnapshotIncrement, PiecesMustFollowEachOther) {
  FedSequence sequence = fed(5);
  FedSequence stranger = fed(5, 2);
  const Bytes first = save(sequence.id);
  const Bytes others = save(stranger.id);
  feeder_.feed_to(sequence, 9);
  const Bytes second = save(sequence.id, 5);
  feeder_.feed_to(sequence, 14);
  const Bytes third = save(sequence.id, 9);
  expect_refused(second, StatusCode::kUnsupported, {"version 3", "accepted: 2", "comes before it"});
  expect_refused(others + second, StatusCode::kBadInput, {"increment 1", "adds to another piece of 5 tokens"});
  expect_refused(first + third, StatusCode::kBadInput, {"increment 1", "another piece of 9", "of 5"});
  expect_refused(first + second + second, StatusCode::kBadInput, {"increment 2", "another piece of 5", "of 9"});
  expect_refused(first + first, StatusCode::kUnsupported, {"increment 1", "version 2", "accepted: 3", "whole"});
  // The same tokens saved again are not what was added to if anything in them differs.
  ASSERT_OK(engine_->release(sequence.id));
  ASSERT_OK(engine_->release(stranger.id));
  const SequenceId restored = engine_->restore_sequence(first + second + third).value();
  EXPECT_EQ(engine_->length(restored).value(), 14);
  ASSERT_OK(engine_->release(restored));
  expect_all_free();
}

// Only the CSA layer: small enough to try every byte.
class CsaSnapshotIncrement : public SnapshotIncrement {
 protected:
  CsaSnapshotIncrement() : SnapshotIncrement(1, 1) {
    FedSequence sequence = fed(5);
    for (const bool authenticated : {false, true}) {
      const std::span<const std::byte> key =
          authenticated ? std::span<const std::byte>(key_) : std::span<const std::byte>();
      FedSequence twin = feeder_.fork(sequence);
      Bytes& chain = authenticated ? signed_ : plain_;
      chain = save(twin.id, 0, key);
      const std::size_t first = chain.size();
      feeder_.feed_to(twin, 9);
      chain = chain + save(twin.id, 5, key);
      (authenticated ? signed_first_ : plain_first_) = first;
      feeder_.release(twin);
    }
    feeder_.release(sequence);
  }

  const Bytes key_ = Bytes(16, std::byte{0x5a});
  Bytes plain_;
  Bytes signed_;
  std::size_t plain_first_ = 0;  // where the increment begins
  std::size_t signed_first_ = 0;
};

TEST_F(CsaSnapshotIncrement, FlippedBytesAreRefusedFromMemoryAndFromASource) {
  for (std::size_t i = plain_first_; i < plain_.size(); i += 3) {
    Bytes flipped = plain_;
    flipped[i] ^= std::byte{0x81};
    for (const auto& restored :
         {engine_->restore_sequence(flipped), engine_->restore_sequence_from(source_of(flipped, 999))}) {
      ASSERT_FALSE(restored.ok()) << "byte " << i;
      const StatusCode code = restored.status().code();
      ASSERT_TRUE(code == StatusCode::kBadInput || code == StatusCode::kUnsupported) << restored.status().to_string();
    }
  }
  expect_all_free();
}

// A chain may end with any of its pieces; anywhere else it is cut off.
TEST_F(CsaSnapshotIncrement, CutsAreRefusedButBetweenPieces) {
  for (std::size_t end = 0; end < plain_.size(); end += end % 100 < 8 ? 1 : 13) {
    const Bytes cut(plain_.begin(), plain_.begin() + static_cast<std::ptrdiff_t>(end));
    if (end == plain_first_) continue;
    EXPECT_TRUE(fails_with(engine_->restore_sequence(cut), StatusCode::kBadInput, {"snapshot: "})) << end;
    EXPECT_TRUE(fails_with(engine_->restore_sequence_from(source_of(cut, 64)), StatusCode::kBadInput, {"snapshot: "}))
        << end;
  }
  expect_all_free();
  const Bytes first(plain_.begin(), plain_.begin() + static_cast<std::ptrdiff_t>(plain_first_));
  EXPECT_EQ(engine_->length(engine_->restore_sequence(first).value()).value(), 5);
  Bytes longer = plain_;
  longer.push_back(std::byte{0});
  expect_refused(longer, StatusCode::kBadInput, {"increment 2", "1 bytes are all there is"});
}

// Every piece has a code of its own, which covers what it adds to.
TEST_F(CsaSnapshotIncrement, EveryPieceIsAuthenticated) {
  ASSERT_EQ(signed_.size(), plain_.size() + 2 * sizeof(Sha256::Digest));
  const auto restored = engine_->restore_sequence_from(source_of(signed_, 100), 0, {.key = key_});
  ASSERT_OK(restored);
  EXPECT_EQ(engine_->length(*restored).value(), 9);
  ASSERT_OK(engine_->release(*restored));
  const Bytes other(16, std::byte{0x5b});
  expect_refused(signed_, StatusCode::kBadInput, {"authentication code"}, other);
  expect_refused(signed_, StatusCode::kInvalidArgument, {"authenticated"});
  expect_refused(plain_, StatusCode::kBadInput, {"nothing authenticates it"}, key_);
  // The increment alone is not: the first piece of one, the second of the other.
  const Bytes mixed = Bytes(signed_.begin(), signed_.begin() + static_cast<std::ptrdiff_t>(signed_first_)) +
                      Bytes(plain_.begin() + static_cast<std::ptrdiff_t>(plain_first_), plain_.end());
  expect_refused(mixed, StatusCode::kBadInput, {"increment 1", "nothing authenticates it"}, key_);
  for (std::size_t i = signed_first_; i < signed_.size(); i += 41) {
    Bytes flipped = signed_;
    flipped[i] ^= std::byte{1};
    EXPECT_FALSE(engine_->restore_sequence(flipped, 0, {.key = key_}).ok()) << i;
    EXPECT_FALSE(engine_->restore_sequence_from(source_of(flipped, 5000), 0, {.key = key_}).ok()) << i;
  }
  expect_all_free();
}

TEST_F(SnapshotIncrement, SourcesAreAskedForBoundedPartsAndMayFail) {
  FedSequence sequence = fed(513);
  const Bytes snapshot = save(sequence.id);
  std::size_t largest = 0;
  SnapshotSource good = source_of(snapshot, snapshot.size());
  const SequenceId restored = engine_
                                  ->restore_sequence_from([&](std::span<std::byte> buffer) {
                                    largest = std::max(largest, buffer.size());
                                    return good(buffer);
                                  })
                                  .value();
  EXPECT_LE(largest, std::size_t{(128 + kDraftBudget)} * 2 * 512 * sizeof(float)) << "the largest block or ring";
  ASSERT_OK(engine_->release(restored));
  feeder_.release(sequence);

  for (const int calls : {0, 1, 5, 20}) {
    SnapshotSource before = source_of(snapshot, snapshot.size());
    const auto failing = [&](const auto& fail) {
      return [&before, &fail, left = calls](std::span<std::byte> buffer) mutable -> Result<std::size_t> {
        return left-- > 0 ? before(buffer) : fail(buffer);
      };
    };
    const auto broken = [](std::span<std::byte>) -> Result<std::size_t> {
      return Status{StatusCode::kNotFound, "the file is gone"};
    };
    EXPECT_TRUE(
        fails_with(engine_->restore_sequence_from(failing(broken)), StatusCode::kNotFound, {"the file is gone"}));
    before = source_of(snapshot, snapshot.size());
    const auto throwing = [](std::span<std::byte>) -> Result<std::size_t> { throw std::runtime_error("oh"); };
    EXPECT_TRUE(fails_with(engine_->restore_sequence_from(failing(throwing)), StatusCode::kInvalidArgument,
                           {"restore_sequence_from: the source threw: oh"}));
    before = source_of(snapshot, snapshot.size());
    const auto boasting = [](std::span<std::byte> buffer) -> Result<std::size_t> { return buffer.size() + 1; };
    EXPECT_TRUE(fails_with(engine_->restore_sequence_from(failing(boasting)), StatusCode::kInvalidArgument,
                           {"the source says it gave", "asked for"}));
    before = source_of(snapshot, snapshot.size());
    Status from_inside;
    const auto meddling = [&](std::span<std::byte>) -> Result<std::size_t> {
      from_inside = engine_->create_sequence().status();
      return std::size_t{0};
    };
    EXPECT_TRUE(fails_with(engine_->restore_sequence_from(failing(meddling)), StatusCode::kBadInput, {"snapshot: "}));
    EXPECT_TRUE(fails_with(from_inside, StatusCode::kFailedPrecondition, {"must not change the engine"}));
    expect_all_free();
  }
  EXPECT_TRUE(fails_with(engine_->restore_sequence_from(SnapshotSource()), StatusCode::kInvalidArgument, {"source"}));
  const SequenceId one = engine_->create_sequence().value();
  const StepEntry entry{one, 1};
  const Step step = engine_->prepare({&entry, 1}).value();
  EXPECT_TRUE(fails_with(engine_->restore_sequence_from(source_of(snapshot, 1000)), StatusCode::kFailedPrecondition,
                         {"outstanding"}));
  ASSERT_OK(engine_->cancel(step));
}

// Blocks may run out at an increment; what the pieces before it took comes back.
TEST_F(SnapshotIncrement, AShortageGivesEverythingBack) {
  FedSequence sequence = fed(60);
  Bytes chain = save(sequence.id);
  feeder_.feed_to(sequence, 500);
  chain = chain + save(sequence.id, 60);
  EngineOptions small = options();
  small.limits.pool_tokens = kContext;
  engine_ = make_engine(small);
  const SequenceId other = engine_->create_sequence(400).value();
  expect_refused(chain, StatusCode::kResourceExhausted, {"extend_restored needs"});
  ASSERT_OK(engine_->release(other));
  expect_all_free();
  const SequenceId restored = engine_->restore_sequence_from(source_of(chain, 4096), kContext).value();
  EXPECT_FALSE(engine_->can_admit(kContext).ok());
  EXPECT_EQ(engine_->length(restored).value(), 500);
}

}  // namespace
}  // namespace dsv4rt::test
