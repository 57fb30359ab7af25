// Context parallelism on the CPU: ranks that share the rows of long steps give the bytes of one rank.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/context_split.h"
#include "base/sha256.h"
#include "mpi/mpi_ranks.h"
#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "tools/lib/trace_check.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt::test {
namespace {

// Every row belongs to one rank; ranks have about as many, and as much of the beginning as of the end.
TEST(ContextSplitTest, DealsOutEveryRowOnce) {
  for (const std::int32_t ranks : {2, 3, 4, 8}) {
    for (const std::int32_t tokens : {1, 15, 16, 100, 704, 4096, 65536}) {
      const ContextSplit split(tokens, ranks);
      std::vector<int> owners(static_cast<std::size_t>(tokens), -1);
      for (std::int32_t rank = 0; rank < ranks; ++rank) {
        for (const RowRange rows : split.of_rank(rank)) {
          EXPECT_EQ(rows.first % 16, 0);
          for (std::int32_t row = rows.first; row < rows.first + rows.count; ++row) {
            EXPECT_EQ(owners[static_cast<std::size_t>(row)], -1);
            owners[static_cast<std::size_t>(row)] = rank;
          }
        }
      }
      std::int32_t next = 0;
      for (std::int32_t index = 0; index < split.pieces(); ++index) {
        const RowRange piece = split.piece(index);
        EXPECT_EQ(piece.first, next);
        next += piece.count;
        if (piece.count == 0) continue;
        EXPECT_EQ(owners[static_cast<std::size_t>(piece.first)], split.owner(index));
      }
      EXPECT_EQ(next, tokens);
    }
  }
}

// Outputs and caches of one sequence after another, as one text.
std::string play(Engine& engine, const LayerRows& inputs, std::int64_t tokens) {
  Sha256 digest;
  const auto add = [&](const LayerRows& rows) {
    for (const auto& layer : rows) digest.update(std::as_bytes(std::span(layer)));
  };
  SequenceFeeder feeder(engine);
  const auto finish = [&](const FedSequence& sequence) {
    add(sequence.outputs);
    for (const std::string& cache : feeder.digests(sequence)) digest.update(std::as_bytes(std::span(cache)));
    feeder.release(sequence);
  };
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{100}, std::int64_t{17}}) {
    FedSequence sequence = feeder.create(inputs);
    feeder.feed_to(sequence, tokens - 3, chunk);
    feeder.feed_to(sequence, tokens, 1);
    finish(sequence);
  }
  // Prompts beside each other, a rejected draft, padding.
  FedSequence first = feeder.create(inputs);
  FedSequence second = feeder.create(inputs);
  const FeedPart prompts[] = {{.sequence = &first, .tokens = 150}, {.sequence = &second, .tokens = 90}};
  feeder.step(prompts, 7);
  const FeedPart drafts[] = {{.sequence = &first, .tokens = 4, .rejected = 2}, {.sequence = &second, .tokens = 60}};
  feeder.step(drafts);
  finish(first);
  finish(second);
  return digest.hex();
}

class ContextParallel : public testing::TestWithParam<const char*> {};

TEST_P(ContextParallel, GivesTheBytesOfOneRank) {
  const auto ranks = all_ranks();
  const GoldenCase golden = GoldenCase::open(GetParam());
  const std::int64_t tokens = 300;
  EngineOptions options = golden.options();
  options.limits = {.max_sequences = 2, .max_context_tokens = 320, .max_step_tokens = 320, .pool_tokens = 640};
  options.draft_budget_tokens = 4;
  EngineOptions divided = options;
  divided.parallel.context = ranks;
  divided.parallel.context_min_tokens = 16;  // chunks of 17 as well: with four ranks most have no row
  const auto engine = make_engine(divided);
  const std::string together = play(*engine, golden.inputs, tokens);
  expect_same_on_every_rank(*ranks, together);
  if (ranks->rank() != 0) return;
  const auto alone = make_engine(options);
  EXPECT_EQ(together, play(*alone, golden.inputs, tokens));
}

// The recorded trace, with prompts that are dealt out.
TEST_P(ContextParallel, MatchesTheReference) {
  const auto ranks = all_ranks();
  const GoldenCase golden = GoldenCase::open(GetParam());
  EngineOptions options = golden.options();
  options.parallel.context = ranks;
  const auto engine = make_engine(options);
  const auto run = run_trace(*engine, golden.trace, {}, {});
  ASSERT_OK(run);
  const auto checks = check_trace(*engine, golden.trace, *run, default_tolerance(*engine));
  ASSERT_OK(checks);
  for (const LayerCheck& check : *checks) {
    EXPECT_TRUE(check.failures.empty()) << check.failures.front();
    EXPECT_TRUE(check.output_compared);
  }
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ContextParallel, testing::Values("tiny-fp8", "tiny-bf16"),
                         [](const auto& info) { return std::string(info.param).substr(5); });

// A rank computes only its rows: others' inputs may be anything.
TEST(ContextParallelRows, InputsOfOtherRanksAreNotRead) {
  const auto ranks = all_ranks();
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  EngineOptions options = golden.options();
  const std::int32_t tokens = 256;
  const auto outputs = [&](Engine& engine, const LayerRows& inputs) {
    SequenceFeeder feeder(engine);
    FedSequence sequence = feeder.create(inputs);
    feeder.feed(sequence, tokens);
    return sequence.outputs;
  };
  const auto alone = make_engine(options);
  options.parallel.context = ranks;
  const auto engine = make_engine(options);
  LayerRows inputs = golden.inputs;
  const ContextSplit split(tokens, ranks->size());
  for (std::int32_t index = 0; index < split.pieces(); ++index) {
    if (split.owner(index) == ranks->rank()) continue;
    const RowRange rows = split.piece(index);
    for (auto& layer : inputs) {
      std::fill_n(layer.begin() + rows.first * golden.hidden(), rows.count * golden.hidden(), Bf16Bits{0x7fc0});
    }
  }
  EXPECT_TRUE(outputs(*engine, inputs) == outputs(*alone, golden.inputs));
}

// Outputs that stay where they were computed: caches are one rank's all the same, and rows of others are not touched,
// also where results are copied from a backend with memory of its own.
class OwnOutputs : public testing::TestWithParam<bool> {};

TEST_P(OwnOutputs, StayWhereTheyWereComputed) {
  const auto ranks = all_ranks();
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  EngineOptions options = golden.options();
  const auto alone = make_engine(options);
  options.parallel.context = ranks;
  options.parallel.context_share_outputs = false;
  const auto engine = make_engine(options);
  const BackendSwap backend(*engine);
  backend->own_memory = GetParam();
  SequenceFeeder one(*alone);
  SequenceFeeder several(*engine);
  FedSequence expected = one.create(golden.inputs);
  FedSequence given = several.create(golden.inputs);
  // The second step is short: every rank computes all of it.
  for (const std::int32_t tokens : {300, 40}) {
    one.feed(expected, tokens);
    several.feed(given, tokens);
  }
  EXPECT_TRUE(several.digests(given) == one.digests(expected));
  std::vector<bool> own(340, false);
  const auto mark = [&own](std::int32_t step_first, const std::array<StepRows, 2>& parts) {
    for (const StepRows& part : parts) {
      std::fill_n(own.begin() + step_first + part.first, part.count, true);
    }
  };
  mark(0, engine->context_rows({.serial = 1, .tokens = 300, .valid_tokens = 300}));
  mark(300, engine->context_rows({.serial = 2, .tokens = 40, .valid_tokens = 40}));
  const auto rows_of = [&](const std::array<StepRows, 2>& parts) { return parts[0].count + parts[1].count; };
  EXPECT_EQ(rows_of(engine->context_rows({.serial = 2, .tokens = 40, .valid_tokens = 40})), 40);
  EXPECT_EQ(rows_of(alone->context_rows({.serial = 1, .tokens = 300, .valid_tokens = 300})), 300);
  EXPECT_LT(std::count(own.begin(), own.end(), true), 300);
  const std::int64_t hidden = golden.hidden();
  for (std::size_t layer = 0; layer < golden.inputs.size(); ++layer) {
    for (std::size_t row = 0; row < own.size(); ++row) {
      const auto at = static_cast<std::ptrdiff_t>(row) * hidden;
      const auto begin = given.outputs[layer].begin() + at;
      const bool equal = std::equal(begin, begin + hidden, expected.outputs[layer].begin() + at);
      // The feeder fills outputs with NaN before a layer runs.
      const bool untouched = std::all_of(begin, begin + hidden, [](Bf16Bits bits) { return bits == 0x7fc0; });
      ASSERT_TRUE(own[row] ? equal : untouched) << "layer " << layer << ", row " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, OwnOutputs, testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "WithOwnMemory" : "OnTheHost"); });

// The prompt's last step hands it over: to every rank in turn, which goes on alone while the others have nothing left.
TEST(ContextParallelHandOver, OneRankGoesOnWithTheBytesOfOneRank) {
  const auto ranks = all_ranks();
  const GoldenCase golden = GoldenCase::open("tiny-fp8");
  constexpr std::int64_t kTokens = 300;
  EngineOptions options = golden.options();
  options.limits = {.max_sequences = 1, .max_context_tokens = 320, .max_step_tokens = 320, .pool_tokens = 320};
  const auto finish = [&](Engine& engine, SequenceFeeder& feeder, FedSequence& sequence) {
    feeder.feed(sequence, 40);
    feeder.feed_to(sequence, kTokens, 1);
    Sha256 digest;
    for (const auto& layer : sequence.outputs) digest.update(std::as_bytes(std::span(layer)));
    for (const std::string& cache : feeder.digests(sequence)) digest.update(std::as_bytes(std::span(cache)));
    EXPECT_OK(engine.release(sequence.id));
    return digest.hex();
  };
  const auto alone = make_engine(options);
  SequenceFeeder one(*alone);
  FedSequence expected = one.create(golden.inputs);
  one.feed(expected, kTokens - 50);
  const std::string text = finish(*alone, one, expected);

  options.parallel.context = ranks;
  options.parallel.context_min_tokens = 32;
  const auto engine = make_engine(options);
  SequenceFeeder feeder(*engine);
  for (std::int32_t holder = 0; holder < ranks->size(); ++holder) {
    FedSequence sequence = feeder.create(golden.inputs);
    feeder.feed(sequence, 60);
    const FeedPart part{.sequence = &sequence, .tokens = kTokens - 110};
    feeder.step({&part, 1}, 0, holder);
    if (ranks->rank() == holder) {
      EXPECT_EQ(finish(*engine, feeder, sequence), text) << "rank " << holder;
    } else {
      EXPECT_EQ(engine->sequence_state(sequence.id)->held_by, holder);
      EXPECT_EQ(engine->length(sequence.id).value(), 0);
      feeder.release(sequence);
    }
  }
  expect_same_on_every_rank(*ranks, "afterwards");
}

// A rank that has run a step more than the others, or is in another layer, is told so: nobody takes its rows.
TEST(ContextParallelHandOver, RanksThatAreOutOfStepAreLost) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  constexpr std::int32_t kTokens = 64;
  for (const bool other_layer : {false, true}) {
    const auto ranks = all_ranks(20);
    EngineOptions options = golden.options();
    options.parallel.context = ranks;
    options.parallel.context_min_tokens = 32;
    const auto engine = make_engine(options);
    const bool last = ranks->rank() == ranks->size() - 1;
    const auto sequence = engine->create_sequence();
    ASSERT_OK(sequence);
    const std::vector<Bf16Bits> x(static_cast<std::size_t>(kTokens * golden.hidden()));
    std::vector<Bf16Bits> out(x.size());
    if (last && !other_layer) {
      // A step of one token, which nobody else takes part in: it is too short.
      const StepEntry entry{.sequence = *sequence, .tokens = 1};
      const auto step = engine->prepare({&entry, 1});
      ASSERT_OK(step);
      for (const LayerId layer : engine->layers()) ASSERT_OK(engine->forward_layer(*step, layer, x.data(), out.data()));
      ASSERT_OK(engine->commit(*step));
    }
    const StepEntry entry{.sequence = *sequence, .tokens = kTokens};
    const auto step = engine->prepare({&entry, 1});
    ASSERT_OK(step);
    const LayerId layer = engine->layers()[last && other_layer ? 1 : 0];
    const Status status = engine->forward_layer(*step, layer, x.data(), out.data());
    EXPECT_EQ(status.code(), StatusCode::kBackendLost) << status.message();
    EXPECT_NE(status.message().find(other_layer ? "the ranks are out of step" : "runs other tokens in layer"),
              std::string::npos)
        << status.message();
    const auto next = engine->create_sequence();
    EXPECT_EQ(next.status().code(), StatusCode::kBackendLost) << "the engine goes on";
    EXPECT_EQ(next.status().message(), status.message());
  }
  expect_same_on_every_rank(*all_ranks(), "afterwards");
}

TEST(ContextParallelOptions, OwnOutputsAreNotCheckedForAll) {
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.parallel.context = all_ranks();
  options.parallel.context_share_outputs = false;
  options.check_outputs = true;
  const Status status = Engine::create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("context_share_outputs"), std::string::npos) << status.message();
}

TEST(ContextParallelOptions, BothKindsAtOnceAreRefused) {
  const auto ranks = all_ranks();
  EngineOptions options = GoldenCase::open("tiny-bf16").options();
  options.parallel.context = ranks;
  options.parallel.context_min_tokens = 0;
  EXPECT_EQ(Engine::create(options).status().code(), StatusCode::kInvalidArgument);
  options.parallel.context_min_tokens = 1;
  options.parallel.tensor = ranks;
  EXPECT_EQ(Engine::create(options).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace dsv4rt::test
