// Captured steps give the bytes of eager ones: 600 random steps with sequences joining, leaving, forking
// and rolling back, and every token bucket (lessons 2, 7 and 8).
#include <algorithm>
#include <cuda_runtime_api.h>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/step_shape.h"
#include "gpu/support/gpu.h"
#include "gpu/support/step_recorder.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kDraftBudget = 7;
constexpr std::int64_t kContext = 700;
constexpr std::int32_t kMaxSequences = 24;
constexpr std::int32_t kMaxTokens = 256;

EngineOptions engine_options(const GoldenCase& golden) {
  EngineOptions options = golden.options();
  options.backend = "cuda";
  options.limits = {
      .max_sequences = kMaxSequences, .max_context_tokens = kContext, .max_step_tokens = kMaxTokens, .pool_tokens = 0};
  options.draft_budget_tokens = kDraftBudget;
  return options;
}

// The same sequences in both engines, at the same lengths.
struct Pair {
  SequenceId eager;
  SequenceId captured;
  std::int64_t length = 0;
};

class CapturedStepsGpuTest : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void make_recorders() {
    golden_ = GoldenCase::open(GetParam());
    eager_ = std::make_unique<StepRecorder>(engine_options(golden_), false, kMaxTokens);
    captured_ = std::make_unique<StepRecorder>(engine_options(golden_), true, kMaxTokens);
  }

  Pair create() {
    auto eager = eager_->engine().create_sequence();
    auto captured = captured_->engine().create_sequence();
    EXPECT_OK(eager);
    EXPECT_OK(captured);
    return {.eager = *eager, .captured = *captured};
  }
  void release(const Pair& pair) {
    EXPECT_OK(eager_->engine().release(pair.eager));
    EXPECT_OK(captured_->engine().release(pair.captured));
  }

  // Advances the pairs by `tokens` each, of which `rejected` are rolled back; outputs must agree.
  void advance(std::span<Pair*> pairs, std::span<const std::int32_t> tokens, std::span<const std::int32_t> rejected) {
    std::vector<StepEntry> eager;
    std::vector<StepEntry> captured;
    std::vector<std::int32_t> accepted;
    std::size_t rows = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      eager.push_back({pairs[i]->eager, tokens[i]});
      captured.push_back({pairs[i]->captured, tokens[i]});
      accepted.push_back(tokens[i] - rejected[i]);
      rows += static_cast<std::size_t>(tokens[i]);
    }
    std::normal_distribution<float> normal;
    std::vector<Bf16Bits> x(rows * static_cast<std::size_t>(golden_.hidden()));
    for (Bf16Bits& value : x) value = to_bf16(normal(random_)).bits;
    const auto of_eager = eager_->run(eager, x, accepted);
    const auto of_captured = captured_->run(captured, x, accepted);
    ASSERT_FALSE(of_eager.empty());
    ASSERT_EQ(of_eager, of_captured);
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i]->length += accepted[i];
  }

  std::int32_t pick(std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(random_);
  }

  GoldenCase golden_;
  std::unique_ptr<StepRecorder> eager_;
  std::unique_ptr<StepRecorder> captured_;
  std::mt19937 random_{20261121};
};

TEST_P(CapturedStepsGpuTest, RandomStepsEqualEagerOnes) {
  make_recorders();
  std::vector<Pair> live;
  for (int step = 0; step < 600 && !HasFatalFailure(); ++step) {
    const int event = pick(0, 19);
    if (live.empty() || (event < 3 && live.size() < kMaxSequences)) live.push_back(create());
    if (event == 3 && live.size() > 1) {
      const auto gone = live.begin() + pick(0, static_cast<std::int32_t>(live.size()) - 1);
      release(*gone);
      live.erase(gone);
    }
    if (event == 4 && live.size() < kMaxSequences) {
      const Pair parent = live[static_cast<std::size_t>(pick(0, static_cast<std::int32_t>(live.size()) - 1))];
      live.push_back({.eager = *eager_->engine().fork(parent.eager),
                      .captured = *captured_->engine().fork(parent.captured),
                      .length = parent.length});
    }
    // A decode, a verify of one width for all, or a step with a prefill chunk in it.
    std::shuffle(live.begin(), live.end(), random_);
    const auto members = static_cast<std::size_t>(pick(1, static_cast<std::int32_t>(live.size())));
    const std::int32_t width = event % 2 == 0 ? 1 : pick(2, kDraftBudget + 1);
    std::vector<Pair*> pairs;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> rejected;
    for (std::size_t i = 0; i < members; ++i) {
      const bool prefill = i == 0 && event >= 17;
      const std::int32_t count = prefill ? pick(9, 60) : width;
      if (live[i].length + count > kContext) continue;
      pairs.push_back(&live[i]);
      tokens.push_back(count);
      rejected.push_back(prefill ? 0 : pick(0, width - 1));
    }
    if (!pairs.empty()) advance(pairs, tokens, rejected);
    std::erase_if(live, [&](const Pair& pair) {
      if (pair.length < kContext - 60) return false;
      EXPECT_EQ(eager_->digest(pair.eager), captured_->digest(pair.captured));
      release(pair);
      return true;
    });
  }
  for (const Pair& pair : live) EXPECT_EQ(eager_->digest(pair.eager), captured_->digest(pair.captured));
  const GraphStats stats = captured_->engine().graph_stats();
  EXPECT_GT(stats.replays, 500);
  EXPECT_GT(stats.replays, stats.captures);
  EXPECT_EQ(eager_->engine().graph_stats().replays, 0);
}

TEST_P(CapturedStepsGpuTest, EveryBucket) {
  make_recorders();
  std::vector<std::int32_t> buckets;
  for (std::int32_t tokens = 1; tokens <= kMaxTokens; ++tokens) {
    if (token_bucket(tokens) == tokens) buckets.push_back(tokens);
  }
  ASSERT_GE(buckets.size(), 15U);
  for (const std::int32_t bucket : buckets) {
    // The bucket full, and with one row of padding; as many sequences as there are slots.
    for (const std::int32_t tokens : {bucket, bucket - 1}) {
      if (tokens == 0) continue;
      std::vector<Pair> sequences;
      std::vector<Pair*> pairs;
      std::vector<std::int32_t> counts;
      const std::int32_t members = std::min(tokens, kMaxSequences);
      for (std::int32_t i = 0; i < members; ++i) {
        sequences.push_back(create());
        counts.push_back(tokens / members + (i < tokens % members ? 1 : 0));
      }
      for (Pair& pair : sequences) pairs.push_back(&pair);
      const std::vector<std::int32_t> none(counts.size(), 0);
      for (int repeat = 0; repeat < 3 && !HasFatalFailure(); ++repeat) advance(pairs, counts, none);
      for (const Pair& pair : sequences) {
        EXPECT_EQ(eager_->digest(pair.eager), captured_->digest(pair.captured)) << "bucket " << bucket;
        release(pair);
      }
    }
  }
  EXPECT_GE(captured_->engine().graph_stats().captures, static_cast<std::int64_t>(buckets.size()));
}

INSTANTIATE_TEST_SUITE_P(Golden, CapturedStepsGpuTest, ::testing::Values("tiny-fp8", "tiny-bf16"),
                         [](const auto& info) { return std::string(info.param).substr(5); });

class GraphCacheGpuTest : public GpuTest {};

// Graphs that push each other out are reported, and results stay right.
TEST_F(GraphCacheGpuTest, ThrashingIsReported) {
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  EngineOptions options = engine_options(golden);
  options.graphs.max_graphs = 2;
  std::vector<std::string> warnings;
  options.on_warning = [&](std::string_view text) { warnings.emplace_back(text); };
  StepRecorder captured(options, true, kMaxTokens);
  StepRecorder eager(engine_options(golden), false, kMaxTokens);
  const auto a = captured.engine().create_sequence();
  const auto b = eager.engine().create_sequence();
  for (const std::int32_t tokens : {1, 2, 4, 8, 1, 2, 4, 8}) {
    std::vector<Bf16Bits> x(static_cast<std::size_t>(tokens * golden.hidden()), to_bf16(0.25F).bits);
    const StepEntry of_a{*a, tokens};
    const StepEntry of_b{*b, tokens};
    ASSERT_EQ(captured.run({&of_a, 1}, x, {}), eager.run({&of_b, 1}, x, {}));
  }
  EXPECT_EQ(captured.engine().graph_stats().captures, 8);
  EXPECT_EQ(captured.engine().graph_stats().evictions, 6);
  ASSERT_EQ(warnings.size(), 3U);  // the first, second and fourth
  EXPECT_NE(warnings[0].find("max_graphs"), std::string::npos);
}

// Products of E4M3 do not depend on the number of rows: padding to a bucket changes nothing.
TEST_F(GraphCacheGpuTest, StepsInFp8AgreeWithoutABucket) {
  EngineOptions options = SyntheticModel{.config = "deepseek-v4-flash", .first_layer = 2, .layer_count = 1}.options();
  options.backend = "cuda";
  options.limits = {.max_sequences = 2, .max_context_tokens = 1200, .max_step_tokens = kMaxTokens, .pool_tokens = 0};
  options.linear_precision = LinearPrecision::kFp8;
  StepRecorder captured(options, true, kMaxTokens);
  StepRecorder eager(options, false, kMaxTokens);
  options.linear_precision = LinearPrecision::kExact;
  StepRecorder exact(options, false, kMaxTokens);
  const auto hidden = static_cast<std::size_t>(eager.engine().config().hidden_size);
  const auto a = captured.engine().create_sequence();
  const auto b = eager.engine().create_sequence();
  const auto c = exact.engine().create_sequence();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (const std::int32_t tokens : {128, 3, 200, 129, 1, 256, 128, 200, 5, 33, 70}) {
    std::vector<Bf16Bits> x(static_cast<std::size_t>(tokens) * hidden);
    for (Bf16Bits& value : x) value = to_bf16(normal(random)).bits;
    const StepEntry of_a{*a, tokens};
    const StepEntry of_b{*b, tokens};
    const StepEntry of_c{*c, tokens};
    const auto outputs = eager.run({&of_b, 1}, x, {});
    ASSERT_EQ(captured.run({&of_a, 1}, x, {}), outputs) << "T " << tokens;
    ASSERT_NE(exact.run({&of_c, 1}, x, {}), outputs) << "T " << tokens << ": these are exact products";
  }
  EXPECT_EQ(captured.digest(*a), eager.digest(*b));
  EXPECT_GT(captured.engine().graph_stats().replays, 0);
}

// Contexts that end about 8,192 and 10,240 tokens, where graphs of other kernels begin.
TEST_F(GraphCacheGpuTest, LongContextsEqualEagerOnes) {
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  EngineOptions options = engine_options(golden);
  options.limits.max_context_tokens = 12000;
  StepRecorder captured(options, true, kMaxTokens);
  StepRecorder eager(options, false, kMaxTokens);
  std::vector<SequenceId> ids[2];
  for (int i = 0; i < 2; ++i) {
    ids[0].push_back(captured.engine().create_sequence().value());
    ids[1].push_back(eager.engine().create_sequence().value());
  }
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto advance = [&](std::int32_t tokens) {
    std::vector<Bf16Bits> x(static_cast<std::size_t>(2 * tokens * golden.hidden()));
    for (Bf16Bits& value : x) value = to_bf16(normal(random)).bits;
    const StepEntry of_captured[] = {{ids[0][0], tokens}, {ids[0][1], tokens}};
    const StepEntry of_eager[] = {{ids[1][0], tokens}, {ids[1][1], tokens}};
    const auto outputs = eager.run(of_eager, x, {});
    ASSERT_FALSE(outputs.empty());
    ASSERT_EQ(captured.run(of_captured, x, {}), outputs);
  };
  std::int32_t length = 0;
  for (const std::int32_t end : {8192, 10240}) {
    while (length < end - 3 && !HasFatalFailure()) {
      const std::int32_t tokens = std::min(kMaxTokens / 2, end - 3 - length);
      advance(tokens);
      length += tokens;
    }
    for (; length < end + 3 && !HasFatalFailure(); ++length) advance(1);
  }
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(captured.digest(ids[0][i]), eager.digest(ids[1][i]));
  EXPECT_GT(captured.engine().graph_stats().replays, 0);
}

// A hook that does what a capture cannot hold is refused, and the engine goes on.
TEST_F(GraphCacheGpuTest, HookThatCannotBeCaptured) {
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  const auto engine = make_engine(engine_options(golden));
  const auto sequence = engine->create_sequence();
  const StepEntry entry{*sequence, 1};
  const auto step = engine->prepare({&entry, 1}, {.pad_to_tokens = 0, .capture = true});
  ASSERT_OK(step);
  const auto waits = [](const LayerOutput& output) -> Status {
    static_cast<void>(cudaStreamSynchronize(static_cast<cudaStream_t>(output.stream)));
    return {};
  };
  EXPECT_TRUE(fails_with(engine->step(*step, engine->input(), waits), StatusCode::kFailedPrecondition, {"captur"}));
  const auto fails = [](const LayerOutput&) -> Status { return {StatusCode::kNotFound, "expert 7"}; };
  EXPECT_TRUE(fails_with(engine->step(*step, engine->input(), fails), StatusCode::kNotFound, {"expert 7"}));
  const auto fine = [](const LayerOutput&) -> Status { return {}; };
  EXPECT_OK(engine->step(*step, engine->input(), fine));
  EXPECT_OK(engine->synchronize());
  EXPECT_OK(engine->commit(*step));
}

// A capture that failed leaves the step as it was: table updates and copies of shared blocks are still to be made.
// Layer by layer afterwards, outputs and caches are those of an undisturbed step.
TEST_F(GraphCacheGpuTest, AFailedCaptureLeavesTheStepAsItWas) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  const auto plain = make_engine(engine_options(golden));
  const auto disturbed = make_engine(engine_options(golden));
  SequenceFeeder of_plain(*plain);
  SequenceFeeder of_disturbed(*disturbed);
  FedSequence parents[] = {of_plain.create(golden.inputs), of_disturbed.create(golden.inputs)};
  of_plain.feed_to(parents[0], 90);
  of_disturbed.feed_to(parents[1], 90);
  FedSequence children[] = {of_plain.fork(parents[0]), of_disturbed.fork(parents[1])};
  const auto waits = [](const LayerOutput& output) -> Status {
    static_cast<void>(cudaStreamSynchronize(static_cast<cudaStream_t>(output.stream)));
    return {};
  };
  const auto throws = [](const LayerOutput& output) -> Status {
    if (output.layer == LayerId(1)) throw std::runtime_error("expert 8");
    return {};
  };
  const LayerRows x = random_rows(5, golden.layers(), 40, golden.hidden());
  LayerRows outputs[2];
  for (std::size_t i = 0; i < 2; ++i) {
    Engine& engine = i == 0 ? *plain : *disturbed;
    const StepEntry entry{children[i].id, 40};
    const auto step = engine.prepare({&entry, 1}, {.pad_to_tokens = 0, .capture = true});
    ASSERT_OK(step);
    ASSERT_EQ(step->tokens, 40) << "a bucket of its own";
    if (i == 1) {
      EXPECT_TRUE(fails_with(engine.step(*step, engine.input(), waits), StatusCode::kFailedPrecondition, {"captur"}));
      EXPECT_TRUE(fails_with(engine.step(*step, engine.input(), throws), StatusCode::kInvalidArgument, {"expert 8"}));
    }
    for (std::size_t layer = 0; layer < engine.layers().size(); ++layer) {
      outputs[i].emplace_back(x[layer].size());
      ASSERT_OK(
          engine.forward_layer_from_host(*step, engine.layers()[layer], x[layer].data(), outputs[i][layer].data()));
    }
    ASSERT_OK(engine.commit(*step));
  }
  EXPECT_EQ(outputs[0], outputs[1]);
  EXPECT_EQ(of_plain.digests(children[0]), of_disturbed.digests(children[1]));
  EXPECT_EQ(of_plain.digests(parents[0]), of_disturbed.digests(parents[1]));
}

// Lengths of a chunk and widths of a verification within a bucket share a graph, and give the bytes of eager steps.
TEST_F(GraphCacheGpuTest, LengthsOfABucketShareAGraph) {
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  StepRecorder captured(engine_options(golden), true, kMaxTokens);
  StepRecorder eager(engine_options(golden), false, kMaxTokens);
  const auto captures_of = [&](std::initializer_list<std::int32_t> lengths) {
    const std::int64_t before = captured.engine().graph_stats().captures;
    for (const std::int32_t tokens : lengths) {
      const SequenceId a = captured.engine().create_sequence().value();
      const SequenceId b = eager.engine().create_sequence().value();
      std::vector<Bf16Bits> x(static_cast<std::size_t>(tokens * golden.hidden()), to_bf16(0.25F).bits);
      const StepEntry of_a{a, tokens};
      const StepEntry of_b{b, tokens};
      EXPECT_EQ(captured.run({&of_a, 1}, x, {}), eager.run({&of_b, 1}, x, {})) << tokens;
      EXPECT_EQ(captured.digest(a), eager.digest(b)) << tokens;
      EXPECT_OK(captured.engine().release(a));
      EXPECT_OK(eager.engine().release(b));
    }
    return captured.engine().graph_stats().captures - before;
  };
  EXPECT_EQ(captures_of({97, 98, 103, 110, 112}), 1);
  EXPECT_EQ(captures_of({5, 6, 7, 8}), 1);
  EXPECT_EQ(captures_of({112, 5}), 0);
}

}  // namespace
}  // namespace dsv4rt::test
