// Context parallelism without MPI and NCCL: ranks are threads of this process, on one CPU or on one GPU. What every
// rank has is what one rank has, byte for byte, and what they exchange for it is little.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "support/thread_ranks.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kMinTokens = 32;

// A layer of each kind: window only, every 4 tokens with an indexer, every 128 tokens.
SyntheticModel model() {
  return {.config = "tiny", .layer_count = 3, .encoding = WeightEncoding::kBf16};
}

EngineOptions options_of(const CacheLimits& limits) {
  EngineOptions options = model().options();
  options.backend = kTestBackend;
  options.threads = 1;
  options.limits = limits;
  return options;
}

EngineOptions divided(EngineOptions options, const std::shared_ptr<Communicator>& ranks) {
  options.parallel.context = ranks;
  options.parallel.context_min_tokens = kMinTokens;
  return options;
}

LayerRows inputs_of(std::uint64_t seed, std::int64_t tokens) {
  return random_rows(seed, model().layer_count, tokens,
                     ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value().hidden_size);
}

// Outputs and cache of a sequence.
std::string digest_of(SequenceFeeder& feeder, const FedSequence& sequence) {
  Sha256 digest;
  for (const auto& layer : sequence.outputs) digest.update(std::as_bytes(std::span(layer)));
  for (const std::string& cache : feeder.digests(sequence)) digest.update(std::as_bytes(std::span(cache)));
  return digest.hex();
}

using Play = std::vector<std::string> (*)(Engine& engine);

// `play` on one engine and on every one of several ranks gives the same texts.
void expect_one_ranks_bytes(const EngineOptions& options, Play play, std::int32_t ranks) {
  const std::vector<std::string> expected = play(*make_engine(options));
  ASSERT_FALSE(expected.empty());
  ThreadRanks::run(ranks, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    const auto engine = make_engine(divided(options, communicator));
    const std::vector<std::string> given = play(*engine);
    ASSERT_EQ(given.size(), expected.size()) << "rank " << rank;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(given[i], expected[i]) << "rank " << rank << " of " << ranks << ", text " << i;
    }
  });
}

// ---- Prompts, drafts and padding in every format ---------------------------------------------------

// Prompts whole and in pieces, then token after token; two beside each other, with rejected drafts and padding.
std::vector<std::string> play_prompts(Engine& engine) {
  constexpr std::int64_t kTokens = 420;
  static const LayerRows inputs = inputs_of(3, kTokens);
  static const LayerRows others = inputs_of(4, kTokens);
  std::vector<std::string> texts;
  SequenceFeeder feeder(engine);
  const auto finish = [&](const FedSequence& sequence) {
    texts.push_back(digest_of(feeder, sequence));
    feeder.release(sequence);
  };
  for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{173}}) {
    FedSequence sequence = feeder.create(inputs);
    feeder.feed_to(sequence, kTokens - 3, chunk);
    feeder.feed_to(sequence, kTokens, 1);
    finish(sequence);
  }
  FedSequence first = feeder.create(inputs);
  FedSequence second = feeder.create(others);
  const FeedPart prompts[] = {{.sequence = &first, .tokens = 219}, {.sequence = &second, .tokens = 90}};
  feeder.step(prompts, 11);
  const FeedPart drafts[] = {{.sequence = &first, .tokens = 4, .rejected = 2}, {.sequence = &second, .tokens = 133}};
  feeder.step(drafts);
  feeder.feed(first, 40);
  finish(first);
  finish(second);
  return texts;
}

struct Formats {
  RowFormat rows;
  IndexKeyFormat keys;
};

class ContextRanks : public testing::TestWithParam<Formats> {};

TEST_P(ContextRanks, PromptsHaveTheBytesOfOneRank) {
  EngineOptions options =
      options_of({.max_sequences = 2, .max_context_tokens = 448, .max_step_tokens = 448, .pool_tokens = 896});
  options.draft_budget_tokens = 4;
  options.row_format = GetParam().rows;
  options.index_format = GetParam().keys;
  for (const std::int32_t ranks : {2, 4}) expect_one_ranks_bytes(options, play_prompts, ranks);
}

INSTANTIATE_TEST_SUITE_P(Formats, ContextRanks,
                         testing::Values(Formats{RowFormat::kFp8DsMla, IndexKeyFormat::kMxfp4},
                                         Formats{RowFormat::kFp8Row, IndexKeyFormat::kFp8},
                                         Formats{RowFormat::kNvfp4, IndexKeyFormat::kNvfp4},
                                         Formats{RowFormat::kBf16, IndexKeyFormat::kBf16}),
                         [](const auto& info) { return std::string(row_format_name(info.param.rows)); });

// ---- Many sequences in a step ----------------------------------------------------------------------

// Sequences of a few tokens: more than one of a piece's tokens in a row may complete a block, and all sequences end in
// the step. A long prompt goes in the middle of them.
std::vector<std::string> play_many(Engine& engine) {
  constexpr std::int64_t kSequences = 40;
  constexpr std::int64_t kLong = 17;
  static const LayerRows inputs = inputs_of(5, 400);
  std::vector<std::string> texts;
  SequenceFeeder feeder(engine);
  std::vector<FedSequence> sequences;
  for (std::int64_t i = 0; i < kSequences; ++i) sequences.push_back(feeder.create(inputs));
  for (std::int64_t round = 0; round < 6; ++round) {
    std::vector<FeedPart> parts;
    for (std::int64_t i = 0; i < kSequences; ++i) {
      const std::int64_t tokens = i == kLong ? 60 : 1 + (i + round) % 3;
      parts.push_back({.sequence = &sequences[static_cast<std::size_t>(i)], .tokens = tokens});
    }
    feeder.step(parts, round);
  }
  for (const FedSequence& sequence : sequences) texts.push_back(digest_of(feeder, sequence));
  return texts;
}

TEST(ContextRanksSteps, ManyShortSequencesHaveTheBytesOfOneRank) {
  const EngineOptions options =
      options_of({.max_sequences = 40, .max_context_tokens = 400, .max_step_tokens = 160, .pool_tokens = 4000});
  for (const std::int32_t ranks : {2, 3}) expect_one_ranks_bytes(options, play_many, ranks);
}

// ---- Prefixes --------------------------------------------------------------------------------------

// Boundaries within a step that is dealt out are kept on every rank, and what continues from them goes on as on one.
std::vector<std::string> play_prefixes(Engine& engine) {
  constexpr std::int64_t kTokens = 700;
  static const LayerRows inputs = inputs_of(6, kTokens);
  std::vector<std::int32_t> ids(kTokens);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>((i * 31) % 997);
  std::vector<std::string> texts;
  SequenceFeeder feeder(engine);
  FedSequence whole = feeder.create(inputs, ids);
  feeder.feed_to(whole, 45);
  feeder.feed_to(whole, kTokens);
  texts.push_back(digest_of(feeder, whole));
  feeder.release(whole);
  for (const std::int64_t length : {std::int64_t{700}, std::int64_t{515}, std::int64_t{390}, std::int64_t{140}}) {
    FedSequence again = feeder.create(inputs, {ids.begin(), ids.begin() + length});
    EXPECT_EQ(again.length, (length - 1) / 128 * 128);
    texts.push_back(std::to_string(again.length));
    feeder.feed_to(again, length);
    texts.push_back(digest_of(feeder, again));
    feeder.release(again);
  }
  return texts;
}

TEST(ContextRanksSteps, KeptBoundariesHaveTheBytesOfOneRank) {
  EngineOptions options = options_of({.max_sequences = 2,
                                      .max_context_tokens = 704,
                                      .max_step_tokens = 704,
                                      .pool_tokens = 2816,
                                      .boundary_states = 12});
  options.prefix_cache.policy.interval_tokens = 128;
  for (const std::int32_t ranks : {2, 4}) expect_one_ranks_bytes(options, play_prefixes, ranks);
}

// ---- What is exchanged -----------------------------------------------------------------------------

// Cuts of a long prompt around the ends of the blocks of 128 tokens that become a row, or with
// DSV4RT_CONTEXT_SWEEP=full at every residue mod 128: pieces are long enough for rows that their owner makes alone, and
// for windows that do not reach back to the piece before.
std::vector<std::string> play_cuts(Engine& engine) {
  constexpr std::int64_t kTokens = 640;  // pieces of 160 tokens for two ranks
  static const LayerRows inputs = inputs_of(10, 128 + kTokens);
  std::vector<std::string> texts;
  SequenceFeeder feeder(engine);
  const char* const asked = std::getenv("DSV4RT_CONTEXT_SWEEP");
  const bool full = asked != nullptr && std::string_view(asked) == "full";
  for (std::int64_t begin = 0; begin < 128; ++begin) {
    const bool near = std::ranges::any_of(std::array{160, 320, 480},
                                          [begin](std::int64_t cut) { return (begin + cut + 1) % 128 <= 2; });
    if (!near && !full) continue;
    FedSequence sequence = feeder.create(inputs);
    feeder.feed_to(sequence, begin, 31);  // too short to be dealt out
    feeder.feed(sequence, kTokens);
    texts.push_back(digest_of(feeder, sequence));
    feeder.release(sequence);
  }
  return texts;
}

TEST(ContextRanksSteps, CutsAroundTheEndsOfBlocksHaveTheBytesOfOneRank) {
  const EngineOptions options =
      options_of({.max_sequences = 1, .max_context_tokens = 768, .max_step_tokens = 640, .pool_tokens = 768});
  expect_one_ranks_bytes(options, play_cuts, 2);
}

// A prompt of one sequence: finished rows, and window rows and projections of the tokens around the cuts and at the
// end.
TEST(ContextRanksSteps, APromptExchangesFinishedRows) {
  constexpr std::int64_t kTokens = 4096;
  constexpr std::int32_t kRanks = 2;
  constexpr std::int64_t kCuts = 2 * kRanks - 1;
  EngineOptions options = options_of(
      {.max_sequences = 1, .max_context_tokens = kTokens, .max_step_tokens = kTokens, .pool_tokens = kTokens});
  const LayerRows inputs = inputs_of(7, kTokens);
  const auto traffic = ThreadRanks::run(kRanks, [&](int, const std::shared_ptr<Communicator>& ranks) {
    EngineOptions own = divided(options, ranks);
    own.parallel.context_share_outputs = false;
    const auto engine = make_engine(own);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs);
    feeder.feed(sequence, kTokens);
  });
  constexpr std::int64_t kRow = 584;  // fp8_ds_mla
  constexpr std::int64_t kKey = 68;   // mxfp4
  constexpr std::int64_t kBlockPadding = 2 * 576;
  const std::int64_t window = (kCuts * 127 + 128) * kRow;
  const std::int64_t csa = kTokens / 4 * (kRow + kKey) + (kCuts * 14 + 8) * 10240 + (kCuts + 1) * kBlockPadding;
  const std::int64_t hca = kTokens / 128 * kRow + (kCuts * 254 + 128) * 4096 + (kCuts + 1) * kBlockPadding;
  // With the projections of every token it was 1 KiB in every layer, 10 KiB in CSA layers and 4 KiB in HCA layers.
  const std::int64_t projections = kTokens * (3 * 1024 + 10240 + 4096);
  for (const ThreadRanks::Traffic& rank : traffic) {
    EXPECT_EQ(rank.shares, 3) << "one a layer";
    EXPECT_LE(rank.bytes, 3 * window + csa + hca);
    EXPECT_LT(rank.bytes, projections / 12);
  }
}

// Queries are made while rows are under way; nothing reads them, or overwrites what rings hold, before they are there.
TEST(ContextRanksOnTheHost, QueriesAreMadeWhileRowsAreExchanged) {
  constexpr std::int64_t kTokens = 300;
  const EngineOptions options = options_of(
      {.max_sequences = 1, .max_context_tokens = kTokens, .max_step_tokens = kTokens, .pool_tokens = kTokens});
  const LayerRows inputs = inputs_of(9, kTokens);
  ThreadRanks::run(2, [&](int, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    const BackendSwap backend(*engine);
    std::set<std::string> within;
    std::set<std::string> outside;
    backend->capturing_ops().fail = [&](std::string_view name) {
      (ThreadRanks::traffic(*ranks).under_way ? within : outside).emplace(name);
      return Status{};
    };
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs);
    feeder.feed(sequence, kTokens);
    EXPECT_EQ(within, (std::set<std::string>{"normed_linear", "query", "index_query"}));
    EXPECT_EQ(outside, (std::set<std::string>{"begin_step", "linear", "swa_kv", "compress", "copy_finished_rows",
                                              "state_store", "indexer_topk", "attend", "swa_cache_write"}));
  });
}

// ---- Failures --------------------------------------------------------------------------------------

// A step that fails on every rank, before, while and after rows are exchanged, can be cancelled; then all is as it was,
// and the same step gives one rank's bytes.
TEST(ContextRanksOnTheHost, AFailedStepLeavesTheStateAsItWas) {
  constexpr std::array<std::string_view, 4> kBeforeTheExchange{"linear", "swa_kv", "compress", "copy_finished_rows"};
  constexpr std::int64_t kBefore = 70;
  constexpr std::int64_t kTokens = 300;
  const EngineOptions options = options_of(
      {.max_sequences = 1, .max_context_tokens = kTokens, .max_step_tokens = kTokens, .pool_tokens = kTokens});
  const LayerRows inputs = inputs_of(8, kTokens);
  const auto alone = make_engine(options);
  SequenceFeeder one(*alone);
  FedSequence expected = one.create(inputs);
  one.feed(expected, kBefore);
  const std::vector<std::string> before = one.digests(expected);
  one.feed(expected, kTokens - kBefore);
  const std::string after = digest_of(one, expected);

  const auto traffic = ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    const BackendSwap backend(*engine);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs);
    feeder.feed(sequence, kBefore);
    const std::vector<Bf16Bits> x(static_cast<std::size_t>((kTokens - kBefore) * engine->config().hidden_size));
    std::vector<Bf16Bits> out(x.size());
    for (const std::string_view operation :
         {"linear", "swa_kv", "compress", "copy_finished_rows", "normed_linear", "query", "index_query", "state_store",
          "indexer_topk", "attend", "swa_cache_write"}) {
      const StepEntry entry{.sequence = sequence.id, .tokens = static_cast<std::int32_t>(kTokens - kBefore)};
      const auto step = engine->prepare({&entry, 1});
      ASSERT_OK(step);
      backend->capturing_ops().fail = [operation](std::string_view name) {
        return name == operation ? Status{StatusCode::kResourceExhausted, "told to fail"} : Status{};
      };
      Status failed;
      LayerId failed_layer;
      for (const LayerId layer : engine->layers()) {
        failed_layer = layer;
        failed = engine->forward_layer(*step, layer, x.data(), out.data());
        if (!failed.ok()) break;
      }
      EXPECT_EQ(failed.code(), StatusCode::kResourceExhausted) << operation;
      backend->capturing_ops().fail = nullptr;
      // A layer may be repeated as long as nobody has got anything of it.
      const bool early = std::ranges::find(kBeforeTheExchange, operation) != kBeforeTheExchange.end();
      EXPECT_EQ(engine->forward_layer(*step, failed_layer, x.data(), out.data()).code(),
                early ? StatusCode::kOk : StatusCode::kFailedPrecondition)
          << operation;
      const auto emptied = engine->cancel(*step);
      ASSERT_OK(emptied);
      if (emptied->empty()) {
        EXPECT_EQ(feeder.digests(sequence), before) << operation << ", rank " << rank;
        continue;
      }
      // Rings were overwritten: the sequence begins anew.
      feeder.release(sequence);
      sequence = feeder.create(inputs);
      feeder.feed(sequence, kBefore);
    }
    feeder.feed(sequence, kTokens - kBefore);
    EXPECT_EQ(digest_of(feeder, sequence), after) << "rank " << rank;
  });
  for (const ThreadRanks::Traffic& rank : traffic) EXPECT_FALSE(rank.under_way);
}

}  // namespace
}  // namespace dsv4rt::test
