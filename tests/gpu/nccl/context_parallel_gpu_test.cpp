// Context parallelism over NCCL: two ranks that share the rows of long steps give the bytes of one GPU.
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "gpu/nccl/two_ranks.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kPrompt = 1200;
constexpr std::int64_t kDecoded = 8;

struct Outcome {
  LayerRows outputs;
  std::vector<std::string> caches;
};

// Prompts in steps of several lengths, so that cuts lie at many residues mod 4 and mod 128; then tokens one by one.
std::vector<Outcome> run(Engine& engine, const LayerRows& inputs) {
  std::vector<Outcome> outcomes;
  SequenceFeeder feeder(engine);
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{611}, std::int64_t{273}, std::int64_t{67}}) {
    FedSequence sequence = feeder.create(inputs);
    feeder.feed_to(sequence, kPrompt, chunk);
    feeder.feed_to(sequence, kPrompt + kDecoded, 1);
    outcomes.push_back({.outputs = sequence.outputs, .caches = feeder.digests(sequence)});
    feeder.release(sequence);
  }
  // Prompts beside each other, with padding.
  FedSequence first = feeder.create(inputs);
  FedSequence second = feeder.create(inputs);
  const FeedPart prompts[] = {{.sequence = &first, .tokens = 350}, {.sequence = &second, .tokens = 190}};
  feeder.step(prompts, 9);
  for (const FedSequence& sequence : {first, second}) {
    outcomes.push_back({.outputs = sequence.outputs, .caches = feeder.digests(sequence)});
    feeder.release(sequence);
  }
  return outcomes;
}

// A rank's engine of two.
std::unique_ptr<Engine> engine_of(EngineOptions options, int rank, std::shared_ptr<Communicator> ranks) {
  options.device = device_of(rank);
  options.parallel.context = std::move(ranks);
  options.parallel.context_min_tokens = 64;
  options.parallel.create_deadline_seconds = 60;
  return make_engine(options);
}

using ContextParallelGpu = TwoRanksGpu;

TEST_F(ContextParallelGpu, GivesTheBytesOfOneGpu) {
  struct Case {
    SyntheticModel model;
    LinearPrecision precision = LinearPrecision::kExact;
  };
  // Of products of E4M3 a layer of full size, whose outputs of attention go on as codes.
  const Case cases[] = {{{.config = "tiny", .layer_count = 4, .encoding = WeightEncoding::kFp8Block128}},
                        {{.config = "tiny", .layer_count = 4, .encoding = WeightEncoding::kBf16}},
                        {{.config = "deepseek-v4-flash", .first_layer = 1, .layer_count = 2}, LinearPrecision::kFp8}};
  for (const auto& [model, precision] : cases) {
    SCOPED_TRACE(model.config + " " + std::string(linear_precision_name(precision)));
    EngineOptions options = model.options();
    options.backend = "cuda";
    options.linear_precision = precision;
    options.limits = {.max_sequences = 2,
                      .max_context_tokens = kPrompt + kDecoded,
                      .max_step_tokens = kPrompt,
                      .pool_tokens = 2 * (kPrompt + kDecoded)};
    const auto alone = make_engine(options);
    const LayerRows inputs = random_rows(13, model.layer_count, kPrompt + kDecoded, alone->config().hidden_size);
    const std::vector<Outcome> expected = run(*alone, inputs);
    std::array<std::vector<Outcome>, kRanks> outcomes;
    on_ranks(30, [&](int rank, std::shared_ptr<Communicator> ranks) {
      outcomes[static_cast<std::size_t>(rank)] = run(*engine_of(options, rank, std::move(ranks)), inputs);
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto& given = outcomes[static_cast<std::size_t>(rank)];
      ASSERT_EQ(given.size(), expected.size()) << "rank " << rank;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(given[i].caches == expected[i].caches) << "rank " << rank << ", case " << i;
        EXPECT_TRUE(given[i].outputs == expected[i].outputs) << "rank " << rank << ", case " << i;
      }
    }
  }
}

// A prompt in two steps, of which the second hands it over to each rank in turn; that one goes on alone.
TEST_F(ContextParallelGpu, ARankGoesOnAloneWithTheBytesOfOneGpu) {
  const SyntheticModel model{.config = "tiny", .layer_count = 4, .encoding = WeightEncoding::kFp8Block128};
  EngineOptions options = model.options();
  options.backend = "cuda";
  options.limits = {.max_sequences = 1,
                    .max_context_tokens = kPrompt + kDecoded,
                    .max_step_tokens = kPrompt,
                    .pool_tokens = kPrompt + kDecoded};
  const auto finish = [](SequenceFeeder& feeder, FedSequence& sequence) {
    feeder.feed(sequence, 200);
    feeder.feed_to(sequence, kPrompt + kDecoded, 1);
    Outcome outcome{.outputs = sequence.outputs, .caches = feeder.digests(sequence)};
    feeder.release(sequence);
    return outcome;
  };
  const auto alone = make_engine(options);
  const LayerRows inputs = random_rows(14, model.layer_count, kPrompt + kDecoded, alone->config().hidden_size);
  SequenceFeeder one(*alone);
  FedSequence whole = one.create(inputs);
  one.feed(whole, kPrompt - 200);
  const Outcome expected = finish(one, whole);
  on_ranks(30, [&](int rank, std::shared_ptr<Communicator> ranks) {
    const auto engine = engine_of(options, rank, std::move(ranks));
    SequenceFeeder feeder(*engine);
    for (int holder = 0; holder < kRanks; ++holder) {
      FedSequence sequence = feeder.create(inputs);
      feeder.feed(sequence, 311);
      const FeedPart part{.sequence = &sequence, .tokens = kPrompt - 200 - 311};
      feeder.step({&part, 1}, 0, holder);
      if (rank == holder) {
        const Outcome given = finish(feeder, sequence);
        EXPECT_TRUE(given.caches == expected.caches) << "rank " << rank;
        EXPECT_TRUE(given.outputs == expected.outputs) << "rank " << rank;
      } else {
        EXPECT_EQ(engine->length(sequence.id).value(), 0);
        feeder.release(sequence);
      }
    }
    EXPECT_OK(engine->synchronize());
  });
}

}  // namespace
}  // namespace dsv4rt::test
