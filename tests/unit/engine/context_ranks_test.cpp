// Context parallelism without MPI and NCCL: ranks are threads of this process, on one CPU or on one GPU. What every
// rank has is what one rank has, byte for byte, and what they exchange for it is little.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/thread_ranks.h"
#include "unit/engine/context_ranks_case.h"

namespace dsv4rt::test {
namespace {

// One sequence on one rank: what several ranks have to give.
struct OneRank {
  OneRank(const EngineOptions& options, const LayerRows& inputs)
      : engine(make_engine(options)), feeder(*engine), sequence(feeder.create(inputs)) {}
  std::unique_ptr<Engine> engine;
  SequenceFeeder feeder;
  FedSequence sequence;
};

EngineOptions options_of_one_sequence(std::int32_t tokens) {
  return options_of(
      {.max_sequences = 1, .max_context_tokens = tokens, .max_step_tokens = tokens, .pool_tokens = tokens});
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

// A communicator of a host, which knows nothing of shares.
class BroadcastsOnly final : public Communicator {
 public:
  explicit BroadcastsOnly(std::shared_ptr<Communicator> inner) : inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view transport() const noexcept override { return inner_->transport(); }
  [[nodiscard]] std::int32_t rank() const noexcept override { return inner_->rank(); }
  [[nodiscard]] std::int32_t size() const noexcept override { return inner_->size(); }
  [[nodiscard]] bool uses_host_memory() const noexcept override { return inner_->uses_host_memory(); }
  [[nodiscard]] std::int64_t scratch_bytes(std::int64_t n) const override { return inner_->scratch_bytes(n); }
  Status reserve(std::int64_t elements) override { return inner_->reserve(elements); }
  Status all_reduce_sum(const void* terms, ElementType terms_type, void* sum, ElementType sum_type,
                        std::int64_t elements, void* stream) override {
    return inner_->all_reduce_sum(terms, terms_type, sum, sum_type, elements, stream);
  }
  Status all_gather(const void* part, void* all, std::int64_t bytes, void* stream) override {
    return inner_->all_gather(part, all, bytes, stream);
  }
  Status broadcast(void* data, std::int64_t bytes, std::int32_t root, void* stream) override {
    return inner_->broadcast(data, bytes, root, stream);
  }
  Status all_gather_host(const void* part, void* all, std::int64_t bytes, double deadline_seconds) override {
    return inner_->all_gather_host(part, all, bytes, deadline_seconds);
  }
  [[nodiscard]] Status state() const override { return inner_->state(); }

 private:
  std::shared_ptr<Communicator> inner_;
};

TEST(ContextRanksSteps, ACommunicatorThatOnlyBroadcastsGivesTheBytesOfOneRank) {
  const EngineOptions options =
      options_of({.max_sequences = 2, .max_context_tokens = 448, .max_step_tokens = 448, .pool_tokens = 896});
  EngineOptions drafts = options;
  drafts.draft_budget_tokens = 4;
  const std::vector<std::string> expected = play_prompts(*make_engine(drafts));
  ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& communicator) {
    const auto engine = make_engine(divided(drafts, std::make_shared<BroadcastsOnly>(communicator)));
    EXPECT_EQ(play_prompts(*engine), expected) << "rank " << rank;
  });
}

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

// A rank that can capture steps, with a sequence and rows that every layer is given.
struct CapturingRank {
  explicit CapturingRank(const std::shared_ptr<Communicator>& ranks)
      : engine(make_engine(divided(
            options_of({.max_sequences = 1, .max_context_tokens = 128, .max_step_tokens = 64, .pool_tokens = 128}),
            ranks))),
        backend(*engine),
        sequence(engine->create_sequence().value()),
        x(static_cast<std::size_t>(64 * engine->config().hidden_size)) {}

  void give_next(const LayerOutput& layer) const {
    if (layer.next_input != nullptr) std::copy(x.begin(), x.end(), layer.next_input);
  }

  std::unique_ptr<Engine> engine;
  BackendSwap backend;
  SequenceId sequence;
  std::vector<Bf16Bits> x;
};

// Steps that their padding makes long enough to be dealt out are not captured, others are.
TEST(ContextRanksOnTheHost, PaddedStepsAreDealtOutOrCaptured) {
  ThreadRanks::run(2, [&](int, const std::shared_ptr<Communicator>& ranks) {
    const CapturingRank rank(ranks);
    Engine* const engine = rank.engine.get();
    const LayerHook hook = [&](const LayerOutput& layer) {
      rank.give_next(layer);
      return Status{};
    };
    const auto run = [&](std::int32_t padded) {
      const StepEntry entry{.sequence = rank.sequence, .tokens = 10};
      const auto step = engine->prepare({&entry, 1}, {.pad_to_tokens = padded, .capture = true});
      ASSERT_OK(step);
      ASSERT_OK(engine->step(*step, rank.x.data(), hook));
      ASSERT_OK(engine->commit(*step));
    };
    run(kMinTokens);
    EXPECT_EQ(engine->graph_stats().captures, 0);
    EXPECT_EQ(engine->graph_stats().eager_steps, 1);
    run(kMinTokens - 1);  // its graph would have 32 rows
    EXPECT_EQ(engine->graph_stats().eager_steps, 2);
    run(0);
    EXPECT_EQ(engine->graph_stats().captures, 1);
    EXPECT_EQ(ThreadRanks::traffic(*ranks).shares, 2 * 3) << "rows and outputs of the first";
  });
}

// A communicator that is asked for its state may ask a device, which would end the capture of a step. A hook may ask
// the engine.
TEST(ContextRanksOnTheHost, NobodyAsksTheRanksDuringACapture) {
  ThreadRanks::run(2, [&](int, const std::shared_ptr<Communicator>& ranks) {
    const CapturingRank rank(ranks);
    Engine* const engine = rank.engine.get();
    const StepEntry entry{.sequence = rank.sequence, .tokens = 4};
    const auto step = engine->prepare({&entry, 1}, {.pad_to_tokens = 0, .capture = true});
    ASSERT_OK(step);
    std::int64_t hooks = 0;
    const LayerHook hook = [&](const LayerOutput& layer) {
      rank.give_next(layer);
      const std::int64_t asked = ThreadRanks::times_asked(*ranks);
      EXPECT_OK(engine->length(rank.sequence));
      EXPECT_OK(engine->sequence_state(rank.sequence));
      EXPECT_EQ(ThreadRanks::times_asked(*ranks), asked);
      ++hooks;
      return Status{};
    };
    ASSERT_OK(engine->step(*step, rank.x.data(), hook));
    EXPECT_EQ(hooks, 3);
    EXPECT_EQ(engine->graph_stats().captures, 1);
    const std::int64_t asked = ThreadRanks::times_asked(*ranks);
    EXPECT_OK(engine->length(rank.sequence));
    EXPECT_GT(ThreadRanks::times_asked(*ranks), asked);
    ASSERT_OK(engine->commit(*step));
  });
}

// Rows before boundaries are exchanged: ranks that would keep others are not created.
TEST(ContextRanksOptions, RanksThatKeepOtherBoundariesAreRefused) {
  for (const bool differ : {false, true}) {
    EngineOptions options = options_of({.max_sequences = 1,
                                        .max_context_tokens = 256,
                                        .max_step_tokens = 64,
                                        .pool_tokens = 512,
                                        .boundary_states = 2});
    ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
      EngineOptions own = divided(options, ranks);
      own.prefix_cache.policy.interval_tokens = differ && rank == 1 ? 256 : 128;
      EXPECT_EQ(Engine::create(own).status().code(), differ ? StatusCode::kFailedPrecondition : StatusCode::kOk);
    });
  }
}

TEST(ContextRanksOptions, ACommunicatorIsOneEnginesAtATime) {
  const EngineOptions one_rank = options_of_one_sequence(64);
  ThreadRanks::run(2, [&](int, const std::shared_ptr<Communicator>& ranks) {
    const EngineOptions options = divided(one_rank, ranks);
    const auto refused = [&] {
      const Status status = Engine::create(options).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.to_string();
      EXPECT_NE(status.message().find("another engine's"), std::string::npos) << status.to_string();
    };
    {
      const auto engine = make_engine(options);
      refused();
      refused();
    }
    // An engine that is gone has it no more, nor has one that could not be made.
    EngineOptions impossible = options;
    impossible.checkpoint = "no such directory";
    EXPECT_FALSE(Engine::create(impossible).ok());
    EXPECT_OK(Engine::create(options));
  });
}

// ---- Failures --------------------------------------------------------------------------------------

// A step that fails on every rank, before, while and after rows are exchanged, can be cancelled; then all is as it was,
// and the same step gives one rank's bytes.
TEST(ContextRanksOnTheHost, AFailedStepLeavesTheStateAsItWas) {
  constexpr std::array<std::string_view, 4> kBeforeTheExchange{"linear", "swa_kv", "compress", "copy_finished_rows"};
  constexpr std::int64_t kBefore = 70;
  constexpr std::int64_t kTokens = 300;
  const EngineOptions options = options_of_one_sequence(kTokens);
  const LayerRows inputs = inputs_of(8, kTokens);
  OneRank expected(options, inputs);
  expected.feeder.feed(expected.sequence, kBefore);
  const std::vector<std::string> before = expected.feeder.digests(expected.sequence);
  expected.feeder.feed(expected.sequence, kTokens - kBefore);
  const std::string after = digest_of(expected.feeder, expected.sequence);

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

// One rank fails while the other waits for it, and tries again in time: nobody is the worse for it.
TEST(ContextRanksOnTheHost, ARankThatTriesAgainInTimeIsNotLost) {
  constexpr std::int64_t kTokens = 300;
  const EngineOptions options = options_of_one_sequence(kTokens);
  const LayerRows inputs = inputs_of(11, kTokens);
  OneRank expected(options, inputs);
  expected.feeder.feed(expected.sequence, kTokens);
  const std::vector<std::string> digests = expected.feeder.digests(expected.sequence);
  ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    const BackendSwap backend(*engine);
    SequenceFeeder feeder(*engine);
    const FedSequence sequence = feeder.create(inputs);
    const StepEntry entry{.sequence = sequence.id, .tokens = kTokens};
    const auto step = engine->prepare({&entry, 1});
    ASSERT_OK(step);
    std::vector<Bf16Bits> out(inputs[0].size());
    std::int64_t failures = 0;
    for (std::size_t layer = 0; layer < engine->layers().size(); ++layer) {
      // The n-th operation of the layer fails, for every n up to the exchange.
      for (int nth = 1; rank == 1; ++nth) {
        int left = nth;
        backend->capturing_ops().fail = [&](std::string_view name) {
          return name != "begin_step" && --left == 0 ? Status{StatusCode::kResourceExhausted, "told to fail"}
                                                     : Status{};
        };
        const std::int64_t shares = ThreadRanks::traffic(*ranks).shares;
        // Two pieces are projected and have window rows; of CSA layers also rows and keys, which are packed. What comes
        // behind them is not tried: it would end the step.
        if (nth > (layer == 1 ? 12 : 4)) break;
        const Status failed = engine->forward_layer(*step, engine->layers()[layer], inputs[layer].data(), out.data());
        ASSERT_EQ(failed.code(), StatusCode::kResourceExhausted) << "layer " << layer << ", operation " << nth;
        ASSERT_EQ(ThreadRanks::traffic(*ranks).shares, shares);
        ++failures;
      }
      backend->capturing_ops().fail = nullptr;
      ASSERT_OK(engine->forward_layer(*step, engine->layers()[layer], inputs[layer].data(), out.data()));
      const auto first = expected.sequence.outputs[layer].begin();
      EXPECT_TRUE(std::equal(out.begin(), out.end(), first)) << "rank " << rank << ", layer " << layer;
    }
    EXPECT_EQ(failures, rank == 1 ? 20 : 0);
    ASSERT_OK(engine->commit(*step));
    EXPECT_EQ(feeder.digests(sequence), digests) << "rank " << rank;
  });
}

}  // namespace
}  // namespace dsv4rt::test
