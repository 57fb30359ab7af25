// A sequence that begins with a cached prefix is, byte for byte, one that computed it.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "support/test_backend.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kUnit = 128;
constexpr std::int32_t kDraftBudget = 3;
constexpr std::int64_t kContext = 1200;

struct PrefixCase {
  RowFormat rows = RowFormat::kFp8DsMla;
  IndexKeyFormat keys = IndexKeyFormat::kMxfp4;
  std::int32_t csa_rows_per_block = 64;
  std::int32_t hca_rows_per_block = 64;
};

class PrefixCacheTest : public testing::Test {
 protected:
  // All kinds of layers. Poisoned: a row of the block's or slot's previous owner is NaN.
  [[nodiscard]] static EngineOptions options(const PrefixCase& format = {}, std::int32_t states = 64) {
    EngineOptions options = SyntheticModel{.config = "tiny", .first_layer = 0, .layer_count = 4}.options();
    options.backend = std::string(kTestBackend);
    options.limits = {.max_sequences = 4,
                      .max_context_tokens = kContext,
                      .max_step_tokens = kContext,
                      .pool_tokens = 0,
                      .boundary_states = states};
    options.prefix_cache.policy.interval_tokens = 1;
    options.draft_budget_tokens = kDraftBudget;
    options.row_format = format.rows;
    options.index_format = format.keys;
    options.csa_rows_per_block = format.csa_rows_per_block;
    options.hca_rows_per_block = format.hca_rows_per_block;
    options.poison_freed_blocks = true;
    return options;
  }
  static std::unique_ptr<Engine> make(const EngineOptions& options) { return make_engine(options); }
  static LayerRows inputs(std::uint64_t seed, const Engine& engine) {
    return random_rows(seed, static_cast<std::int64_t>(engine.layers().size()), kContext, engine.config().hidden_size);
  }
  static std::vector<std::int32_t> ids(std::uint64_t seed, std::int64_t tokens = kContext) {
    std::mt19937_64 random(seed);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 129280);
    return ids;
  }
  static std::vector<std::int32_t> first(const std::vector<std::int32_t>& ids, std::int64_t tokens) {
    return {ids.begin(), ids.begin() + tokens};
  }

  // What a sequence computed from the start holds and gave at each of the lengths.
  struct Cold {
    std::map<std::int64_t, std::vector<std::string>> digests;
    LayerRows outputs;
  };
  static Cold run_cold(EngineOptions options, const LayerRows& rows, const std::vector<std::int64_t>& lengths) {
    options.limits.boundary_states = 0;
    const auto engine = make(options);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(rows);
    Cold cold;
    for (const std::int64_t length : lengths) {
      feeder.feed_to(sequence, length);
      cold.digests[length] = feeder.digests(sequence);
    }
    cold.outputs = sequence.outputs;
    return cold;
  }
  // Outputs of the sequence's tokens from `from` on are those of the cold run.
  static void expect_outputs(const Engine& engine, const FedSequence& sequence, std::int64_t from, const Cold& cold) {
    const std::int64_t hidden = engine.config().hidden_size;
    EXPECT_TRUE(sequence.outputs == slice_rows(cold.outputs, from, sequence.length - from, hidden));
  }
};

const std::vector<std::int64_t> kLengths = {128 + 1,  256 + 7,  384 + 70,  512 + 127,
                                            640 + 64, 768 + 33, 896 + 100, 1024 + 2};

// Fills the cache in steps of `chunk` (0: at once), then begins one sequence at each boundary.
void expect_hits_equal_cold(
    Engine& engine, const LayerRows& rows, const std::vector<std::int32_t>& ids, std::int64_t chunk,
    const std::function<void(SequenceFeeder&, FedSequence&, std::int64_t, std::int64_t)>& check) {
  SequenceFeeder feeder(engine);
  FedSequence writer = feeder.create(rows, ids);
  ASSERT_EQ(writer.length, 0);
  feeder.feed_to(writer, 1100, chunk);
  feeder.release(writer);
  for (const std::int64_t length : kLengths) {
    SCOPED_TRACE("length " + std::to_string(length) + ", filled by " + std::to_string(chunk));
    const std::vector<std::int32_t> some(ids.begin(), ids.begin() + length);
    FedSequence warm = feeder.create(rows, some);
    const std::int64_t hit = warm.length;
    ASSERT_EQ(hit, (length - 1) / kUnit * kUnit);
    check(feeder, warm, hit, length);
    feeder.release(warm);
  }
}

TEST_F(PrefixCacheTest, HitsEqualAColdRunAtEveryBoundaryAndChunking) {
  for (const std::int64_t chunk : {0, 100, 128, 333}) {
    const auto engine = make(options());
    const LayerRows rows = inputs(1, *engine);
    const Cold cold = run_cold(options(), rows, kLengths);
    expect_hits_equal_cold(*engine, rows, ids(1), chunk,
                           [&](SequenceFeeder& feeder, FedSequence& warm, std::int64_t hit, std::int64_t length) {
                             feeder.feed_to(warm, length, hit % 3 == 0 ? 0 : 13);
                             EXPECT_EQ(feeder.digests(warm), cold.digests.at(length));
                             expect_outputs(*engine, warm, hit, cold);
                           });
    EXPECT_EQ(engine->prefix_stats().hit_tokens, 128 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
    if (HasFatalFailure()) return;
  }
}

TEST_F(PrefixCacheTest, EveryFormatAndBlockSize) {
  std::vector<PrefixCase> cases;
  for (const RowFormat rows : {RowFormat::kFp8DsMla, RowFormat::kFp8Row, RowFormat::kNvfp4, RowFormat::kBf16}) {
    cases.push_back({.rows = rows});
  }
  for (const IndexKeyFormat keys : {IndexKeyFormat::kNvfp4, IndexKeyFormat::kFp8, IndexKeyFormat::kBf16}) {
    cases.push_back({.keys = keys});
  }
  cases.push_back({.csa_rows_per_block = 16, .hca_rows_per_block = 1});
  cases.push_back({.csa_rows_per_block = 32, .hca_rows_per_block = 2});
  cases.push_back({.csa_rows_per_block = 128, .hca_rows_per_block = 4});
  for (const PrefixCase& format : cases) {
    SCOPED_TRACE("rows " + std::string(row_format_name(format.rows)) + ", keys " +
                 std::string(index_key_format_name(format.keys)) + ", blocks " +
                 std::to_string(format.csa_rows_per_block) + " and " + std::to_string(format.hca_rows_per_block));
    const auto engine = make(options(format));
    const LayerRows rows = inputs(2, *engine);
    const Cold cold = run_cold(options(format), rows, kLengths);
    expect_hits_equal_cold(*engine, rows, ids(2), 500,
                           [&](SequenceFeeder& feeder, FedSequence& warm, std::int64_t hit, std::int64_t length) {
                             feeder.feed_to(warm, length);
                             EXPECT_EQ(feeder.digests(warm), cold.digests.at(length));
                             expect_outputs(*engine, warm, hit, cold);
                           });
    if (HasFatalFailure()) return;
  }
}

// Drafts that are rejected on both sides of a boundary, before it is cached and after a hit at it.
TEST_F(PrefixCacheTest, RejectedDraftsAcrossABoundaryLeaveNoTrace) {
  const auto engine = make(options());
  const LayerRows rows = inputs(3, *engine);
  const std::vector<std::int64_t> lengths = {126, 127, 128, 129, 130, 260};
  const Cold cold = run_cold(options(), rows, lengths);
  SequenceFeeder feeder(*engine);
  for (const std::int64_t length : lengths) {
    SCOPED_TRACE("drafts at " + std::to_string(length));
    ASSERT_OK(engine->clear_prefixes());
    FedSequence writer = feeder.create(rows, ids(3));
    feeder.feed_to(writer, length - 1);
    const FeedPart drafts{.sequence = &writer, .tokens = 1 + kDraftBudget, .rejected = kDraftBudget};
    feeder.step({&drafts, 1});
    feeder.feed_to(writer, 260, 1);
    EXPECT_EQ(feeder.digests(writer), cold.digests.at(260));
    FedSequence warm = feeder.create(rows, first(ids(3), 260));
    ASSERT_EQ(warm.length, 256);
    const FeedPart again{.sequence = &warm, .tokens = 1 + kDraftBudget, .rejected = kDraftBudget};
    feeder.step({&again, 1});
    feeder.feed_to(warm, 260, 1);
    EXPECT_EQ(feeder.digests(warm), cold.digests.at(260));
    expect_outputs(*engine, warm, 256, cold);
    feeder.release(warm);
    feeder.release(writer);
  }
}

// Three sequences from one boundary, the one that computed it still running: each writes rows of its own.
TEST_F(PrefixCacheTest, SequencesFromOneBoundaryDoNotDisturbEachOther) {
  const auto engine = make(options());
  SequenceFeeder feeder(*engine);
  const LayerRows shared = inputs(4, *engine);
  std::vector<LayerRows> rows;
  std::vector<std::vector<std::int32_t>> all_ids;
  const std::int64_t hidden = engine->config().hidden_size;
  for (std::uint64_t i = 0; i < 3; ++i) {
    rows.push_back(join_rows(slice_rows(shared, 0, 384, hidden), slice_rows(inputs(40 + i, *engine), 0, 300, hidden)));
    std::vector<std::int32_t> some = first(ids(4), 384);
    const std::vector<std::int32_t> own = ids(40 + i, 300);
    some.insert(some.end(), own.begin(), own.end());
    all_ids.push_back(some);
  }
  std::vector<FedSequence> sequences;
  sequences.push_back(feeder.create(rows[0], all_ids[0]));
  feeder.feed_to(sequences[0], 400);
  for (std::size_t i = 1; i < 3; ++i) {
    sequences.push_back(feeder.create(rows[i], all_ids[i]));
    ASSERT_EQ(sequences[i].length, 384);
  }
  for (int round = 0; round < 14; ++round) {
    std::vector<FeedPart> parts;
    for (FedSequence& sequence : sequences) parts.push_back({.sequence = &sequence, .tokens = 17});
    std::rotate(parts.begin(), parts.begin() + round % 3, parts.end());
    feeder.step(parts);
    ASSERT_FALSE(HasFatalFailure());
  }
  for (std::size_t i = 0; i < 3; ++i) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    const Cold cold = run_cold(options(), rows[i], {sequences[i].length});
    EXPECT_EQ(feeder.digests(sequences[i]), cold.digests.at(sequences[i].length));
  }
  // And each of their continuations can be hit in turn.
  for (std::size_t i = 0; i < 3; ++i) feeder.release(sequences[i]);
  for (std::size_t i = 0; i < 3; ++i) {
    const std::int64_t length = 600;
    FedSequence warm = feeder.create(rows[i], first(all_ids[i], length));
    EXPECT_EQ(warm.length, 512);
    feeder.feed_to(warm, length);
    EXPECT_EQ(feeder.digests(warm), run_cold(options(), rows[i], {length}).digests.at(length));
    feeder.release(warm);
  }
}

TEST_F(PrefixCacheTest, BranchAndTruncateReachEveryKeptBoundary) {
  const auto engine = make(options());
  const LayerRows rows = inputs(5, *engine);
  const LayerRows other = inputs(50, *engine);
  const std::int64_t hidden = engine->config().hidden_size;
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(rows, ids(5));
  feeder.feed_to(sequence, 1000, 250);
  const Status between = engine->truncate(sequence.id, 500);
  EXPECT_EQ(between.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(between.message().find("nearest one below is at 384"), std::string::npos) << between.message();
  for (const std::int64_t boundary : {896, 512, 128}) {
    SCOPED_TRACE("boundary " + std::to_string(boundary));
    auto branch = engine->branch(sequence.id, boundary);
    ASSERT_OK(branch);
    FedSequence branched = sequence;
    branched.id = branch.value();
    branched.length = boundary;
    branched.inputs = join_rows(slice_rows(rows, 0, boundary, hidden), slice_rows(other, 0, 100, hidden));
    branched.token_ids = first(ids(5), boundary);
    const auto more = ids(50, 100);
    branched.token_ids.insert(branched.token_ids.end(), more.begin(), more.end());
    feeder.feed_to(branched, boundary + 50);
    const Cold cold = run_cold(options(), branched.inputs, {boundary + 50});
    EXPECT_EQ(feeder.digests(branched), cold.digests.at(boundary + 50));
    feeder.release(branched);
  }
  for (const std::int64_t boundary : {768, 256}) {
    feeder.truncate(sequence, boundary);
    feeder.feed_to(sequence, boundary + 140);
    EXPECT_EQ(feeder.digests(sequence), run_cold(options(), rows, {boundary + 140}).digests.at(boundary + 140));
  }
}

// Far more prefixes than fit: what is hit is right, and admission is as without a cache.
TEST_F(PrefixCacheTest, AFullPoolEvictsAndStaysExact) {
  EngineOptions small = options({.csa_rows_per_block = 32, .hca_rows_per_block = 2}, 6);
  small.limits.pool_tokens = kContext;
  const auto engine = make(small);
  SequenceFeeder feeder(*engine);
  std::map<std::uint64_t, Cold> cold;
  std::mt19937_64 random(9);
  std::int64_t hits = 0;
  for (int round = 0; round < 30; ++round) {
    const std::uint64_t seed = 60 + random() % 4;
    const std::int64_t length = 130 + static_cast<std::int64_t>(random() % 3) * 290;
    const LayerRows rows = inputs(seed, *engine);
    if (!cold.contains(seed)) cold[seed] = run_cold(small, rows, {130, 420, 710});
    FedSequence sequence = feeder.create(rows, first(ids(seed), length));
    hits += sequence.length;
    const std::int64_t hit = sequence.length;
    feeder.feed_to(sequence, length);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
    EXPECT_EQ(feeder.digests(sequence), cold[seed].digests.at(length)) << "round " << round << ", hit " << hit;
    feeder.release(sequence);
  }
  EXPECT_GT(hits, 0);
  const PrefixStats stats = engine->prefix_stats();
  EXPECT_GT(stats.units_removed_for_space, 0);
  EXPECT_EQ(stats.hit_tokens, hits);
}

}  // namespace
}  // namespace dsv4rt::test
