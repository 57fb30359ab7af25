// Tensor parallelism on the CPU: ranks together give what one rank gives, and every rank's cache holds its bytes.
#include <chrono>
#include <cmath>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "mpi/mpi_ranks.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "tools/lib/trace_check.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt::test {
namespace {

constexpr double kFp8Tolerance = 1e-2;
constexpr double kBf16Tolerance = 4e-3;

std::string digest_of(const LayerRows& rows) {
  Sha256 digest;
  for (const auto& layer : rows) digest.update(std::as_bytes(std::span(layer)));
  return digest.hex();
}

std::string digest_of(const std::vector<std::string>& texts) {
  Sha256 digest;
  for (const std::string& text : texts) digest.update(std::as_bytes(std::span(text)));
  return digest.hex();
}

double distance(const std::vector<Bf16Bits>& values, const std::vector<Bf16Bits>& reference) {
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double expected = to_float(bf16{reference[i]});
    error += std::pow(to_float(bf16{values[i]}) - expected, 2);
    norm += expected * expected;
  }
  return std::sqrt(error / norm);
}

struct Outcome {
  LayerRows outputs;
  std::string cache;  // digest of all layers
};

// One sequence of the engine, `chunk` tokens a step (0: at once).
Outcome run(Engine& engine, const LayerRows& inputs, std::int64_t tokens, std::int64_t chunk) {
  SequenceFeeder feeder(engine);
  FedSequence sequence = feeder.create(inputs);
  feeder.feed_to(sequence, tokens, chunk);
  Outcome outcome{.outputs = sequence.outputs, .cache = digest_of(feeder.digests(sequence))};
  feeder.release(sequence);
  return outcome;
}

// Heads and groups that divide by 2 and 4. Columns of wo_b a rank, of two and four: 256 and 128, or 288 and 144.
struct ShardedModel {
  const char* name;
  SyntheticModel model;
  double tolerance;
};
void PrintTo(const ShardedModel& model, std::ostream* out) {
  *out << model.name;
}
const ShardedModel kModels[] = {
    {"Fp8",
     {.config = "tiny", .layer_count = 4, .encoding = WeightEncoding::kFp8Block128, .o_groups = 4, .o_lora_rank = 128},
     kFp8Tolerance},
    {"Fp8SeveralGroupsARank",
     {.config = "tiny",
      .first_layer = 1,
      .layer_count = 2,
      .encoding = WeightEncoding::kFp8Block128,
      .heads = 16,
      .o_groups = 8,
      .o_lora_rank = 64},
     kFp8Tolerance},
    {"Bf16OddGroups",
     {.config = "tiny",
      .layer_count = 3,
      .encoding = WeightEncoding::kBf16,
      .heads = 24,
      .o_groups = 12,
      .o_lora_rank = 48},
     kBf16Tolerance},
    {"Nvfp4",
     {.config = "tiny",
      .first_layer = 1,
      .layer_count = 2,
      .encoding = WeightEncoding::kNvfp4,
      .heads = 16,
      .o_groups = 4,
      .o_lora_rank = 48},
     kBf16Tolerance},
};

constexpr std::int64_t kTokens = 300;

EngineOptions options_of(const SyntheticModel& model, std::shared_ptr<Communicator> ranks) {
  EngineOptions options = model.options();
  options.threads = 1;
  options.limits = {
      .max_sequences = 2, .max_context_tokens = kTokens, .max_step_tokens = kTokens, .pool_tokens = 2 * kTokens};
  options.parallel.tensor = std::move(ranks);
  return options;
}

class TensorParallel : public testing::TestWithParam<ShardedModel> {};

TEST_P(TensorParallel, GivesWhatOneRankGivesWithTheSameCacheBytes) {
  const auto ranks = all_ranks();
  const SyntheticModel& model = GetParam().model;
  const auto engine = make_engine(options_of(model, ranks));
  const std::int64_t hidden = engine->config().hidden_size;
  const LayerRows inputs = random_rows(11, model.layer_count, kTokens, hidden);

  const Outcome whole = run(*engine, inputs, kTokens, 0);
  const Outcome again = run(*engine, inputs, kTokens, 0);
  const Outcome chunks = run(*engine, inputs, kTokens, 37);
  EXPECT_EQ(digest_of(again.outputs), digest_of(whole.outputs));
  EXPECT_EQ(again.cache, whole.cache);
  EXPECT_EQ(digest_of(chunks.outputs), digest_of(whole.outputs));
  EXPECT_EQ(chunks.cache, whole.cache);

  expect_same_on_every_rank(*ranks, digest_of(whole.outputs));
  expect_same_on_every_rank(*ranks, whole.cache);
  if (ranks->rank() != 0) return;
  const auto alone = make_engine(options_of(model, nullptr));
  const Outcome one = run(*alone, inputs, kTokens, 64);
  EXPECT_EQ(whole.cache, one.cache);
  for (std::size_t layer = 0; layer < one.outputs.size(); ++layer) {
    EXPECT_LE(distance(whole.outputs[layer], one.outputs[layer]), GetParam().tolerance) << "layer " << layer;
  }
  // A rank holds its part of the matrices that ranks share, and all of the others.
  const double held = static_cast<double>(engine->memory().weight_bytes);
  const double all = static_cast<double>(alone->memory().weight_bytes);
  EXPECT_LT(held, all);
  EXPECT_GT(held * ranks->size(), all);
}

INSTANTIATE_TEST_SUITE_P(Models, TensorParallel, testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param.name); });

// Prefill of one sequence beside decoding of others, rejected tokens and forks, as on one rank.
TEST(TensorParallelSteps, MixedStepsAndForksGiveOneRanksBytes) {
  const auto ranks = all_ranks();
  const SyntheticModel& model = kModels[0].model;
  const auto play = [&](Engine& engine) {
    SequenceFeeder feeder(engine);
    const std::int64_t hidden = engine.config().hidden_size;
    FedSequence first = feeder.create(random_rows(1, model.layer_count, kTokens, hidden));
    feeder.feed_to(first, 150, 50);
    FedSequence second = feeder.fork(first);
    for (int i = 0; i < 4; ++i) {
      const FeedPart parts[] = {{.sequence = &first, .tokens = 1}, {.sequence = &second, .tokens = 9}};
      feeder.step(parts, 3);
    }
    feeder.truncate(second, 0);
    feeder.feed_to(second, 40, 0);
    std::vector<std::string> digests = feeder.digests(first);
    for (std::string& digest : feeder.digests(second)) digests.push_back(std::move(digest));
    return digest_of(digests);
  };
  const auto engine = make_engine(options_of(model, ranks));
  const std::string together = play(*engine);
  expect_same_on_every_rank(*ranks, together);
  if (ranks->rank() != 0) return;
  const auto alone = make_engine(options_of(model, nullptr));
  EXPECT_EQ(together, play(*alone));
}

// A sequence saved by ranks goes on in an engine of one, and the other way round: the digests of weights agree.
TEST(TensorParallelSnapshots, GoBetweenNumbersOfRanks) {
  const auto ranks = all_ranks();
  const auto engine = make_engine(options_of(kModels[0].model, ranks));
  const auto alone = make_engine(options_of(kModels[0].model, nullptr));
  const LayerRows inputs = random_rows(3, 4, 140, engine->config().hidden_size);
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(inputs);
  feeder.feed_to(sequence, 140);
  const auto saved = engine->save_sequence(sequence.id);
  ASSERT_OK(saved);
  const auto restored = alone->restore_sequence(*saved);
  ASSERT_OK(restored);
  const auto saved_again = alone->save_sequence(*restored);
  ASSERT_OK(saved_again);
  EXPECT_EQ(*saved_again, *saved);
  EXPECT_OK(engine->restore_sequence(*saved_again));
}

// The recorded trace: two groups, so two ranks, whose columns are whole blocks of scales only without scales.
TEST(TensorParallelGolden, MatchesTheReference) {
  const auto ranks = all_ranks();
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  EngineOptions options = golden.options();
  options.parallel.tensor = ranks;
  if (ranks->size() != 2) {
    const auto refused = Engine::create(options);
    ASSERT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("o_groups = 2 over " + std::to_string(ranks->size()) + " ranks"),
              std::string::npos)
        << refused.status().message();
    return;
  }
  const auto engine = make_engine(options);
  for (const std::int64_t chunk : {0, 100}) {
    const auto run = run_trace(*engine, golden.trace, {.chunk_tokens = chunk}, {});
    ASSERT_OK(run);
    const auto checks = check_trace(*engine, golden.trace, *run, default_tolerance(*engine));
    ASSERT_OK(checks);
    EXPECT_DOUBLE_EQ(default_tolerance(*engine).output_relative_error, kBf16Tolerance);
    Sha256 caches;
    for (const LayerRun& layer : run->layers) {
      ASSERT_OK(EngineInspector(*engine).digest_cache(layer.layer, run->sequence, caches));
    }
    for (const LayerCheck& check : *checks) {
      EXPECT_TRUE(check.failures.empty()) << check.failures.front();
      EXPECT_TRUE(check.output_compared);
    }
    expect_same_on_every_rank(*ranks, caches.hex());
    ASSERT_OK(engine->release(run->sequence));
  }
}

TEST(TensorParallelGolden, ColumnsThatShareAScaleAreNotSplit) {
  const auto ranks = all_ranks();
  SyntheticModel model = kModels[0].model;
  model.o_lora_rank = 32;  // 128 columns: one block
  const auto refused = Engine::create(options_of(model, ranks));
  ASSERT_EQ(refused.status().code(), StatusCode::kUnsupported);
  const std::string columns = std::to_string(128 / ranks->size());
  EXPECT_NE(refused.status().message().find("128 columns, which are " + columns + " for each of " +
                                            std::to_string(ranks->size()) + " ranks"),
            std::string::npos)
      << refused.status().message();
  EXPECT_OK(ranks->state());  // the ranks agreed that there is no engine
  EXPECT_OK(Engine::create(options_of(kModels[0].model, ranks)));
}

TEST(TensorParallelAgreement, RanksThatDifferAreRefused) {
  const auto ranks = all_ranks();
  const bool last = ranks->rank() == ranks->size() - 1;
  EngineOptions shorter = options_of(kModels[0].model, ranks);
  shorter.limits.max_step_tokens = 100;
  EngineOptions coarser = options_of(kModels[0].model, ranks);
  coarser.linear_precision = LinearPrecision::kFp8;
  for (const EngineOptions& differs : {shorter, coarser}) {
    const auto other = Engine::create(last ? differs : options_of(kModels[0].model, ranks));
    ASSERT_EQ(other.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(other.status().message().find("was created for another checkpoint, or with other options"),
              std::string::npos)
        << other.status().message();
    EXPECT_OK(Engine::create(differs));  // all ranks alike
  }

  EngineOptions options = options_of(kModels[0].model, ranks);
  if (last) options.checkpoint = "/nonexistent";
  const auto absent = Engine::create(options);
  ASSERT_EQ(absent.status().code(), last ? StatusCode::kNotFound : StatusCode::kFailedPrecondition);
  if (!last) {
    EXPECT_NE(absent.status().message().find("could not be created: not found"), std::string::npos)
        << absent.status().message();
  }
  EXPECT_OK(Engine::create(options_of(kModels[0].model, ranks)));
}

// One rank stays away from a step: the others have their typed error in time, every later call says the same, and an
// engine of the ranks that are left (here each alone) works.
TEST(TensorParallelLoss, ARankThatStaysAwayLatchesTheOthers) {
  constexpr double kDeadline = 0.3;
  const auto all = all_ranks();
  auto ranks = all_ranks(kDeadline);
  const auto engine = make_engine(options_of(kModels[0].model, ranks));
  const std::int64_t hidden = engine->config().hidden_size;
  const bool absent = ranks->rank() == 0;
  if (!absent) {
    const std::vector<Bf16Bits> x(static_cast<std::size_t>(hidden), Bf16Bits{0x3f80});
    std::vector<Bf16Bits> out(x.size());
    const auto sequence = engine->create_sequence();
    ASSERT_OK(sequence);
    const StepEntry entry{.sequence = *sequence, .tokens = 1};
    const auto step = engine->prepare({&entry, 1});
    ASSERT_OK(step);
    const auto begin = std::chrono::steady_clock::now();
    const Status lost = engine->forward_layer(*step, engine->layers()[0], x.data(), out.data());
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(lost.code(), StatusCode::kBackendLost) << lost.message();
    EXPECT_LE(waited.count(), kDeadline + 1);
    for (const Status& status : {engine->commit(*step), engine->cancel(*step).status(),
                                 engine->create_sequence().status(), engine->synchronize()}) {
      EXPECT_EQ(status.code(), StatusCode::kBackendLost);
      EXPECT_EQ(status.message(), lost.message());
    }
    EXPECT_EQ(Engine::create(options_of(kModels[0].model, ranks)).status().code(), StatusCode::kBackendLost);
  }
  expect_same_on_every_rank(*all, "the step is lost");
  if (absent) static_cast<void>(new std::shared_ptr<Communicator>(ranks));  // freeing takes all ranks
  const auto alone = make_engine(options_of(kModels[0].model, nullptr));
  const LayerRows inputs = random_rows(5, 4, 20, hidden);
  expect_same_on_every_rank(*all, run(*alone, inputs, 20, 0).cache);
  const auto anew = make_engine(options_of(kModels[0].model, all));
  expect_same_on_every_rank(*all, run(*anew, inputs, 20, 0).cache);
}

}  // namespace
}  // namespace dsv4rt::test
