// What an engine tells of its prefix cache, and what prefixes are told apart by.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

struct ToldEvent {
  PrefixEvent::Kind kind;
  PrefixDigest digest;
  PrefixDigest parent;
  std::int64_t end_tokens;
  std::vector<std::int32_t> token_ids;
  std::vector<CacheRole> roles;
  std::string medium;
  PrefixRemoval removal;
};

class PrefixEventsTest : public testing::Test {
 protected:
  EngineOptions options(const SyntheticModel& model = {.config = "tiny", .first_layer = 0, .layer_count = 3}) {
    EngineOptions options = model.options();
    options.limits = {
        .max_sequences = 2, .max_context_tokens = 600, .max_step_tokens = 600, .pool_tokens = 0, .boundary_states = 8};
    options.prefix_cache.policy.interval_tokens = 256;
    options.prefix_cache.event_token_ids = true;
    options.prefix_cache.on_event = [this](const PrefixEvent& event) {
      told_.push_back({.kind = event.kind,
                       .digest = event.digest,
                       .parent = event.parent,
                       .end_tokens = event.end_tokens,
                       .token_ids = {event.token_ids.begin(), event.token_ids.end()},
                       .roles = {event.roles.begin(), event.roles.end()},
                       .medium = event.medium,
                       .removal = event.removal});
    };
    return options;
  }
  // Runs 300 tokens with these ids and ends the sequence.
  static void fill(Engine& engine, const std::vector<std::int32_t>& ids, std::span<const std::byte> salt = {}) {
    SequenceFeeder feeder(engine);
    FedSequence sequence = feeder.create(
        random_rows(3, static_cast<std::int64_t>(engine.layers().size()), 600, engine.config().hidden_size), ids,
        {.salt = salt, .reserve_tokens = 0, .policy = {}});
    feeder.feed_to(sequence, 300);
    feeder.release(sequence);
  }
  static std::vector<std::int32_t> ids() {
    std::vector<std::int32_t> ids(300);
    std::iota(ids.begin(), ids.end(), 5);
    return ids;
  }
  [[nodiscard]] std::vector<PrefixDigest> digests() const {
    std::vector<PrefixDigest> digests;
    for (const ToldEvent& event : told_) {
      if (event.kind == PrefixEvent::Kind::kUnitStored) digests.push_back(event.digest);
    }
    return digests;
  }

  std::vector<ToldEvent> told_;
};

TEST_F(PrefixEventsTest, UnitsAndStatesThatComeAndGoAreTold) {
  const auto engine = make_engine(options());
  fill(*engine, ids());
  ASSERT_EQ(told_.size(), 3U);
  EXPECT_EQ(told_[0].kind, PrefixEvent::Kind::kUnitStored);
  EXPECT_EQ(told_[0].end_tokens, 128);
  EXPECT_EQ(told_[1].kind, PrefixEvent::Kind::kUnitStored);
  EXPECT_EQ(told_[1].end_tokens, 256);
  EXPECT_EQ(told_[1].parent, told_[0].digest);
  EXPECT_EQ(told_[2].kind, PrefixEvent::Kind::kStateStored);
  EXPECT_EQ(told_[2].digest, told_[1].digest);
  const std::vector<std::int32_t> all = ids();
  EXPECT_EQ(told_[1].token_ids, std::vector<std::int32_t>(all.begin() + 128, all.begin() + 256));
  EXPECT_EQ(told_[0].roles, (std::vector{CacheRole::kCsaKv, CacheRole::kIndexK, CacheRole::kHcaKv}));
  EXPECT_EQ(told_[2].roles, (std::vector{CacheRole::kSwaKv, CacheRole::kCsaState, CacheRole::kIndexState}));
  EXPECT_EQ(told_[0].medium, "cpu");
  told_.clear();
  ASSERT_OK(engine->clear_prefixes());
  ASSERT_EQ(told_.size(), 3U);
  EXPECT_EQ(std::count_if(told_.begin(), told_.end(),
                          [](const ToldEvent& event) { return event.removal == PrefixRemoval::kRequest; }),
            3);
  EXPECT_EQ(told_[0].kind, PrefixEvent::Kind::kStateRemoved);
  EXPECT_EQ(told_[1].kind, PrefixEvent::Kind::kUnitRemoved);
  EXPECT_EQ(told_[1].end_tokens, 256);
}

// Whoever listens can neither change the engine nor break it.
TEST_F(PrefixEventsTest, AListenerThatThrowsOrCallsBackChangesNothing) {
  EngineOptions throwing = options();
  Engine* engine_of_listener = nullptr;
  std::vector<StatusCode> answers;
  throwing.prefix_cache.on_event = [&](const PrefixEvent&) {
    answers.push_back(engine_of_listener->clear_prefixes().code());
    throw std::runtime_error("listener");
  };
  const auto engine = make_engine(throwing);
  engine_of_listener = engine.get();
  fill(*engine, ids());
  EXPECT_EQ(answers, std::vector<StatusCode>(3, StatusCode::kFailedPrecondition));
  EXPECT_EQ(engine->prefix_stats().kept_units, 2);
}

TEST_F(PrefixEventsTest, AnotherSaltFormatPrecisionOrCheckpointGivesOtherDigests) {
  std::vector<std::vector<PrefixDigest>> runs;
  const auto run = [&](const EngineOptions& with, std::span<const std::byte> salt = {}) {
    told_.clear();
    fill(*make_engine(with), ids(), salt);
    runs.push_back(digests());
    ASSERT_EQ(runs.back().size(), 2U);
  };
  const std::byte salt[] = {std::byte{0}};
  run(options());
  run(options(), salt);
  EngineOptions rows = options();
  rows.row_format = RowFormat::kBf16;
  run(rows);
  EngineOptions blocks = options();
  blocks.hca_rows_per_block = 2;
  run(blocks);
  EngineOptions precision = options();
  precision.linear_precision = LinearPrecision::kFp8;
  run(precision);
  run(options({.config = "tiny", .first_layer = 1, .layer_count = 3}));
  run(options({.config = "tiny", .first_layer = 0, .layer_count = 3, .encoding = WeightEncoding::kBf16}));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t j = i + 1; j < runs.size(); ++j) {
      EXPECT_NE(runs[i][0], runs[j][0]) << i << " and " << j;
      EXPECT_NE(runs[i][1], runs[j][1]) << i << " and " << j;
    }
  }
  const std::vector<PrefixDigest> again = (run(options()), runs.back());
  EXPECT_EQ(again, runs.front());
}

TEST_F(PrefixEventsTest, NegativeIdsAndOptionsAreRefused) {
  const auto engine = make_engine(options());
  const std::int32_t negative[] = {4, -7};
  const auto expect_names_it = [](const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("token_ids[1] = -7"), std::string::npos) << status.message();
  };
  expect_names_it(engine->create_sequence(negative, {}).status());
  expect_names_it(engine->prefix_lookup(negative).status());
  expect_names_it(engine->pin_prefix(negative).status());
  const auto start = engine->create_sequence(ids(), {});
  ASSERT_OK(start);
  const StepEntry entry{.sequence = start->sequence, .tokens = 2, .token_ids = negative};
  expect_names_it(engine->prepare({&entry, 1}).status());
  EngineOptions quota = options();
  quota.prefix_cache.tenant_quota_tokens = -1;
  EXPECT_EQ(Engine::create(quota).status().code(), StatusCode::kInvalidArgument);
  EngineOptions interval = options();
  interval.prefix_cache.policy.interval_tokens = -1;
  EXPECT_EQ(Engine::create(interval).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(PrefixEventsTest, WithoutAPrefixCacheItsCallsSaySo) {
  EngineOptions off = options();
  off.limits.boundary_states = 0;
  const auto engine = make_engine(off);
  EXPECT_EQ(engine->prefix_unit_tokens(), 0);
  EXPECT_EQ(engine->prefix_stats().lookups, 0);
  const std::vector<std::int32_t> some = ids();
  for (const Status& status :
       {engine->create_sequence(some, {}).status(), engine->prefix_lookup(some).status(),
        engine->pin_prefix(some).status(), engine->unpin_prefix(some).status(), engine->evict_prefix(some).status(),
        engine->clear_prefixes(), engine->branch({}, 128).status()}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("boundary_states"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace dsv4rt::test
