// What replays from cached prefixes compare, that they see differences, and what they say they could not run.
#include "tools/lib/prefix_replay.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "tools/lib/engine_editor.h"

namespace dsv4rt::test {
namespace {

// A cold run of the golden trace (393 tokens; a prompt of 333) with the cache on.
class PrefixReplays : public testing::Test {
 protected:
  void run_cold(std::int32_t states, PrefixPolicy policy, TraceRunOptions steps = {}, std::int64_t spare_tokens = 1) {
    EngineOptions options = golden_.options();
    options.limits.max_sequences = 2;
    options.limits.max_context_tokens += spare_tokens;
    options.limits.boundary_states = states;
    options.prefix_cache.policy = policy;
    options.prefix_cache.on_event = kept_.listener();
    engine_ = make_engine(options);
    ids_ = trace_token_ids(golden_.trace);
    steps_ = steps;
    steps_.token_ids = ids_;
    auto run = run_trace(*engine_, golden_.trace, steps_, {});
    ASSERT_OK(run);
    run_ = std::move(run).value();
    auto cache = digest_roles(*engine_, run_.sequence);
    ASSERT_OK(cache);
    cache_ = std::move(cache).value();
  }

  std::vector<PrefixReplay> replay() {
    auto replays = replay_prefixes(*engine_, golden_.trace, steps_, {.run = run_, .cache = cache_}, kept_, {});
    EXPECT_OK(replays);
    return std::move(replays).value();
  }

  void shorten_trace(std::int64_t tokens) {
    for (LayerTrace& layer : golden_.trace.layers) {
      layer.input.resize(static_cast<std::size_t>(tokens * golden_.hidden()));
      layer.topk.reset();
    }
    golden_.trace.prefill_tokens = tokens;
    golden_.trace.decode_tokens = 0;
  }

  static std::vector<std::int64_t> boundaries(const std::vector<PrefixReplay>& replays) {
    std::vector<std::int64_t> at;
    for (const PrefixReplay& replay : replays) at.push_back(replay.boundary);
    return at;
  }

  static constexpr PrefixPolicy kEveryUnit{
      .interval_tokens = 1, .prompt_end = false, .output_end = false, .fork_points = false};
  GoldenCase golden_ = GoldenCase::open("tiny-bf16");
  KeptBoundaries kept_;
  std::vector<std::int32_t> ids_;
  TraceRunOptions steps_;
  std::unique_ptr<Engine> engine_;
  TraceRun run_;
  std::vector<RoleDigest> cache_;
};

TEST_F(PrefixReplays, EveryBoundaryGivesTheColdRun) {
  run_cold(8, kEveryUnit, {.chunk_tokens = 100, .decode_from = 300, .token_ids = {}});
  const auto replays = replay();
  EXPECT_EQ(boundaries(replays), (std::vector<std::int64_t>{128, 256, 384}));
  for (const PrefixReplay& replay : replays) {
    EXPECT_TRUE(replay.ok()) << replay.boundary << ": " << replay.skipped;
    EXPECT_TRUE(replay.outputs_equal && replay.caches_equal);
    EXPECT_EQ(replay.hit_tokens, replay.boundary);
  }
  EXPECT_EQ(engine_->prefix_stats().hit_tokens, 128 + 256 + 384);
}

TEST_F(PrefixReplays, AColdRunWithTheCacheIsOneWithoutIt) {
  run_cold(8, kEveryUnit);
  const std::unique_ptr<Engine> plain = make_engine(golden_.options());
  auto run = run_trace(*plain, golden_.trace, {}, {});
  ASSERT_OK(run);
  const auto cache = digest_roles(*plain, run->sequence).value();
  ASSERT_EQ(cache.size(), cache_.size());
  for (std::size_t i = 0; i < cache.size(); ++i) EXPECT_EQ(cache[i].sha256, cache_[i].sha256);
  for (std::size_t i = 0; i < run->layers.size(); ++i) {
    const auto& ours = run_.layers[i].output;
    EXPECT_TRUE(std::equal(ours.begin(), ours.end(), run->layers[i].output.begin(),
                           [](bf16 a, bf16 b) { return a.bits == b.bits; }));
  }
}

// A byte of a cached row changes after the cold run: whoever begins with it shows that.
TEST_F(PrefixReplays, ChangedRowsAreFound) {
  run_cold(8, kEveryUnit);
  EngineEditor editor(*engine_);
  const LayerId csa(1);
  auto bytes = editor.read_block(csa, CacheRole::kCsaKv, run_.sequence, 0);
  ASSERT_OK(bytes);
  bytes->front() ^= std::byte{1};
  ASSERT_TRUE(editor.write_block(csa, CacheRole::kCsaKv, run_.sequence, 0, *bytes).ok());
  for (const PrefixReplay& replay : replay()) {
    EXPECT_FALSE(replay.caches_equal) << replay.boundary;
    EXPECT_FALSE(replay.ok());
    const auto& found = replay.differences;
    EXPECT_EQ(std::count(found.begin(), found.end(), "layer 1: CSA_KV differs"), 1);
    EXPECT_EQ(std::count(found.begin(), found.end(), "layer 1: SWA_KV differs"), 0);
  }
}

TEST_F(PrefixReplays, ChangedOutputsAreFoundFromTheHitOn) {
  run_cold(8, kEveryUnit);
  const auto hidden = static_cast<std::size_t>(engine_->config().hidden_size);
  run_.layers[2].output[200 * hidden].bits ^= 1;
  const auto replays = replay();
  ASSERT_EQ(replays.size(), 3U);
  EXPECT_EQ(replays[0].differences, (std::vector<std::string>{"layer 2: outputs differ from token 200 on"}));
  EXPECT_FALSE(replays[0].outputs_equal);
  EXPECT_TRUE(replays[1].ok()) << "token 200 is before the hit";
}

// A state that cannot be begun from is no miss to be passed over in silence.
TEST_F(PrefixReplays, AHitThatIsTooShortIsADifference) {
  run_cold(8, kEveryUnit);
  KeptBoundaries wrong;
  PrefixEvent stored;
  stored.kind = PrefixEvent::Kind::kStateStored;
  stored.end_tokens = 200;
  wrong.listener()(stored);
  auto replays = replay_prefixes(*engine_, golden_.trace, steps_, {.run = run_, .cache = cache_}, wrong, {});
  ASSERT_OK(replays);
  ASSERT_EQ(replays->size(), 1U);
  EXPECT_EQ(replays->at(0).hit_tokens, 128);
  EXPECT_EQ(replays->at(0).differences, (std::vector<std::string>{"the sequence began with 128 tokens"}));
}

TEST_F(PrefixReplays, StatesThatLeftAreSkippedWithTheReason) {
  run_cold(2, kEveryUnit, {.chunk_tokens = 100, .decode_from = -1, .token_ids = {}});
  const auto replays = replay();
  EXPECT_EQ(boundaries(replays), (std::vector<std::int64_t>{128, 256, 384}));
  EXPECT_NE(replays[0].skipped, "");
  EXPECT_FALSE(replays[0].ok());
  EXPECT_TRUE(replays[1].ok());
  EXPECT_TRUE(replays[2].ok());
}

// One taken by a replay could push out another that is to be replayed yet.
TEST_F(PrefixReplays, ReplaysTakeNoStates) {
  PrefixPolicy policy = kEveryUnit;
  policy.interval_tokens = 256;
  run_cold(8, policy);
  EXPECT_EQ(engine_->prefix_stats().states_taken, 1);
  EXPECT_EQ(boundaries(replay()), std::vector<std::int64_t>{256});
  EXPECT_EQ(engine_->prefix_stats().states_taken, 1);
}

TEST_F(PrefixReplays, TheEndOfTheTraceIsABoundaryToo) {
  shorten_trace(256);
  run_cold(8, kEveryUnit);
  auto replays = replay();
  EXPECT_EQ(boundaries(replays), (std::vector<std::int64_t>{128, 256}));
  for (const PrefixReplay& replay : replays) EXPECT_TRUE(replay.ok()) << replay.skipped;
}

TEST_F(PrefixReplays, WithoutRoomForATokenMoreTheEndIsSkipped) {
  shorten_trace(256);
  run_cold(8, kEveryUnit, {}, 0);
  const auto replays = replay();
  ASSERT_EQ(replays.size(), 2U);
  EXPECT_TRUE(replays[0].ok());
  EXPECT_NE(replays[1].skipped.find("one token more"), std::string::npos);
}

TEST_F(PrefixReplays, IdsAreThoseOfTheRows) {
  const auto ids = trace_token_ids(golden_.trace);
  ASSERT_EQ(ids.size(), 393U);
  EXPECT_TRUE(std::all_of(ids.begin(), ids.end(), [](std::int32_t id) { return id >= 0; }));
  EXPECT_EQ(std::set<std::int32_t>(ids.begin(), ids.end()).size(), ids.size());
  const auto hidden = static_cast<std::size_t>(golden_.hidden());
  // Every layer's row counts; equal rows have equal ids.
  for (LayerTrace& layer : golden_.trace.layers) {
    std::copy_n(layer.input.begin() + static_cast<std::ptrdiff_t>(7 * hidden), hidden,
                layer.input.begin() + static_cast<std::ptrdiff_t>(300 * hidden));
  }
  golden_.trace.layers[2].input[5 * hidden].bits ^= 1;
  const auto changed = trace_token_ids(golden_.trace);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i == 300) {
      EXPECT_EQ(changed[i], ids[7]);
    } else if (i == 5) {
      EXPECT_NE(changed[i], ids[i]);
    } else {
      EXPECT_EQ(changed[i], ids[i]);
    }
  }
}

TEST_F(PrefixReplays, AWrongNumberOfIdsIsRefused) {
  run_cold(8, kEveryUnit);
  const std::vector<std::int32_t> few(ids_.begin(), ids_.end() - 1);
  const auto run = run_trace(*engine_, golden_.trace, {.chunk_tokens = 0, .decode_from = -1, .token_ids = few}, {});
  EXPECT_EQ(run.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace dsv4rt::test
