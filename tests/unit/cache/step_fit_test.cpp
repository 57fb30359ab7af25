// Whether a step's blocks are there is foretold as prepare_forward finds it.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "prefix_fixture.h"

namespace dsv4rt::testing_cache {
namespace {

// A walk over sequences that share, reserve and cut, in pools that are too small for all of them.
class Walk {
 public:
  Walk(std::uint32_t seed, bool prefixes) : random_(seed), prefixes_(prefixes) {
    PrefixSetup setup;
    setup.ratios = {4, 128, 4};
    setup.context = 1024;
    setup.step_tokens = 1024;
    setup.pool_tokens = 1536;
    if (!prefixes) setup.states = 0;
    cache_ = prefix_cache(setup);
  }

  void change() {
    const int kind = pick(10);
    if (kind < 3 || sequences_.empty()) {
      create();
    } else if (kind == 3) {
      const auto fork = cache_.manager->fork(any(), pick(2) * 300);
      if (fork.ok()) sequences_.push_back(fork->child);
    } else if (kind == 4) {
      const SequenceId sequence = any();
      const std::int64_t length = *cache_.manager->length(sequence);
      const std::int64_t earliest = *cache_.manager->earliest_truncation(sequence);
      if (length > 0) static_cast<void>(cache_.manager->truncate(sequence, std::min(length, earliest + pick(64))));
    } else if (kind == 5) {
      const SequenceId gone = any();
      EXPECT_TRUE(cache_.manager->release(gone).ok());
      std::erase(sequences_, gone);
    } else {
      step();
    }
  }

  int refused() const { return refused_; }
  int prepared() const { return prepared_; }

 private:
  void create() {
    const std::int64_t reserve = pick(3) == 0 ? pick(600) : 0;
    if (!prefixes_) {
      const auto created = cache_.manager->create_sequence(reserve);
      if (created.ok()) sequences_.push_back(*created);
      return;
    }
    const auto ids = token_ids(1 + pick(900), pick(2));
    const auto started = cache_.manager->create_sequence(ids, {.reserve_tokens = reserve});
    if (started.ok()) sequences_.push_back(started->sequence);
  }

  void step() {
    std::vector<StepEntry> batch;
    std::vector<std::vector<std::int32_t>> ids;
    ids.reserve(sequences_.size());
    std::shuffle(sequences_.begin(), sequences_.end(), random_);
    const auto entries = 1 + static_cast<std::size_t>(pick(static_cast<int>(sequences_.size())));
    for (std::size_t i = 0; i < entries; ++i) {
      const std::int64_t room = 1024 - *cache_.manager->length(sequences_[i]);
      const auto tokens = static_cast<std::int32_t>(std::min<std::int64_t>(room, 1 + pick(250)));
      if (tokens < 1) continue;
      ids.push_back(token_ids(tokens, pick(2)));
      batch.push_back({.sequence = sequences_[i], .tokens = tokens, .token_ids = ids.back().data()});
    }
    if (batch.empty()) return;
    const auto foretold = cache_.manager->step_shortage(batch);
    ASSERT_TRUE(foretold.ok()) << foretold.status().to_string();
    const auto plan = cache_.manager->prepare_forward(batch);
    if (!plan.ok()) return expect_shortage(plan.status(), *foretold, batch);
    ++prepared_;
    ASSERT_FALSE(foretold->has_value());
    expect_equal_layers();
    // During a step the answer is that of afterwards, if everything stays.
    const auto during = cache_.manager->step_shortage(batch);
    if (pick(4) == 0) {
      ASSERT_TRUE(cache_.manager->rollback(plan->serial, StepProgress::kPrepared).ok());
      return;
    }
    ASSERT_TRUE(cache_.manager->commit(plan->serial).ok());
    const auto after = cache_.manager->step_shortage(batch);
    ASSERT_EQ(during.ok(), after.ok());
    if (during.ok() && !prefixes_) {
      EXPECT_EQ(during->has_value(), after->has_value());
    }
    ASSERT_TRUE(cache_.manager->check_invariants().ok());
  }

  void expect_shortage(const Status& refusal, const std::optional<PoolShortage>& foretold,
                       const std::vector<StepEntry>& batch) {
    ++refused_;
    ASSERT_EQ(refusal.code(), StatusCode::kResourceExhausted) << refusal.to_string();
    ASSERT_TRUE(foretold.has_value()) << refusal.to_string();
    const PoolSpec& pool = cache_.layout.pools()[static_cast<std::size_t>(foretold->pool)];
    if (refusal.message().find(std::string(cache_role_name(pool.role)) + ", layer") != std::string::npos) {
      EXPECT_NE(refusal.message().find(": " + std::to_string(foretold->missing_blocks) + " blocks ("),
                std::string::npos)
          << foretold->missing_blocks << " in " << refusal.message();
    }
    ASSERT_LT(foretold->entry, static_cast<std::int32_t>(batch.size()));
    const auto fitting = static_cast<std::size_t>(foretold->entry);
    const std::span<const StepEntry> entries(batch);
    EXPECT_TRUE(cache_.manager->step_shortage(entries.first(fitting + 1))->has_value());
    if (fitting == 0) return;
    EXPECT_FALSE(cache_.manager->step_shortage(entries.first(fitting))->has_value());
    const auto plan = cache_.manager->prepare_forward(entries.first(fitting));
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    ASSERT_TRUE(cache_.manager->rollback(plan->serial, StepProgress::kPrepared).ok());
  }

  // What Engine::state rests on.
  void expect_equal_layers() {
    for (int pool = 1; pool < static_cast<int>(cache_.layout.pools().size()); ++pool) {
      for (int other = 0; other < pool; ++other) {
        const auto role = [&](int index) { return cache_.layout.pools()[static_cast<std::size_t>(index)].role; };
        if (role(pool) != role(other)) continue;
        const PoolUsage a = cache_.manager->usage(pool);
        const PoolUsage b = cache_.manager->usage(other);
        EXPECT_EQ(a.total, b.total);
        EXPECT_EQ(a.free, b.free);
        EXPECT_EQ(a.live, b.live);
        EXPECT_EQ(a.cached, b.cached);
        EXPECT_EQ(a.pinned, b.pinned);
        EXPECT_EQ(a.reserved, b.reserved);
      }
    }
  }

  int pick(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  SequenceId any() { return sequences_[static_cast<std::size_t>(pick(static_cast<int>(sequences_.size())))]; }

  std::mt19937 random_;
  bool prefixes_;
  PrefixTestCache cache_;
  std::vector<SequenceId> sequences_;
  int refused_ = 0;
  int prepared_ = 0;
};

TEST(StepFitTest, ForetellsEveryRefusal) {
  for (const bool prefixes : {false, true}) {
    int refused = 0;
    int prepared = 0;
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
      Walk walk(seed, prefixes);
      for (int i = 0; i < 150 && !testing::Test::HasFailure(); ++i) walk.change();
      refused += walk.refused();
      prepared += walk.prepared();
    }
    EXPECT_GT(refused, 50);
    EXPECT_GT(prepared, 300);
  }
}

TEST(StepFitTest, WrongBatchesAreRefusedAndNothingChanges) {
  TestCache cache = small_cache();
  const SequenceId sequence = cache.create();
  ASSERT_TRUE(cache.append(sequence, 100).ok());
  const auto before = cache.snapshot({sequence});
  const auto ask = [&](const std::vector<StepEntry>& batch) { return cache.manager->step_shortage(batch).status(); };
  expect_refused(ask({}), StatusCode::kInvalidArgument, {"0 sequences"});
  expect_refused(ask({{sequence, 1}, {sequence, 1}}), StatusCode::kInvalidArgument, {"appears twice"});
  expect_refused(ask({{sequence, 0}}), StatusCode::kInvalidArgument, {"tokens = 0"});
  expect_refused(ask({{{.index = 3, .generation = 9}, 1}}), StatusCode::kStaleHandle, {"3"});
  expect_refused(ask({{sequence, 2000}}), StatusCode::kInvalidArgument, {"max_context_tokens"});
  EXPECT_TRUE(ask({{sequence, 1}}).ok());
  EXPECT_EQ(cache.snapshot({sequence}), before);
  // It leaves an outstanding step alone.
  const auto plan = cache.prepare({{sequence, 30}});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(ask({{sequence, 700}}).ok());
  ASSERT_TRUE(cache.manager->rollback(plan->serial, StepProgress::kPrepared).ok());
  EXPECT_EQ(cache.snapshot({sequence}), before);
}

}  // namespace
}  // namespace dsv4rt::testing_cache
