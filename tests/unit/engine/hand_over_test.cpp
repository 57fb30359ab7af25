// Sequences that a step hands over to one of several ranks (StepOptions::hand_over_to): what that rank has is what one
// rank has, byte for byte, and it goes on alone; the others have nothing left, and got less.
#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/thread_ranks.h"
#include "tools/lib/context_exchange.h"
#include "unit/engine/context_ranks_case.h"

namespace dsv4rt::test {
namespace {

EngineOptions options_of_sequences(std::int32_t sequences, std::int32_t tokens) {
  return options_of({.max_sequences = sequences,
                     .max_context_tokens = tokens,
                     .max_step_tokens = tokens,
                     .pool_tokens = std::int64_t{sequences} * tokens});
}

// Blocks that are nobody's, of all.
bool nothing_is_held(const Engine& engine) {
  const auto state = engine.state();
  EXPECT_OK(state);
  return std::all_of(state->roles.begin(), state->roles.end(), [](const RoleState& role) {
    return role.free_blocks == role.total_blocks && role.reserved_blocks == 0;
  });
}

// All that is left of a sequence where it is not any more.
void expect_gone(Engine& engine, SequenceId sequence, int holder) {
  const auto state = engine.sequence_state(sequence);
  ASSERT_OK(state);
  EXPECT_EQ(state->held_by, holder);
  EXPECT_EQ(state->length, 0);
  EXPECT_EQ(state->reserve_tokens, 0);
  EXPECT_EQ(engine.length(sequence).value(), 0);
  const std::string text = "handed the sequence over to rank " + std::to_string(holder) + "; this is rank ";
  const auto expect_refused = [&](const char* call, const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << call;
    EXPECT_NE(status.message().find(std::string(call) + ": step "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
  };
  const StepEntry entry{.sequence = sequence, .tokens = 1};
  expect_refused("prepare", engine.prepare({&entry, 1}).status());
  expect_refused("can_step", engine.can_step({&entry, 1}).status());
  expect_refused("fork", engine.fork(sequence).status());
  expect_refused("truncate", engine.truncate(sequence, 0));
  expect_refused("snapshot_bytes", engine.snapshot_bytes(sequence).status());
  expect_refused("save_sequence", engine.save_sequence(sequence, [](std::span<const std::byte>) { return Status{}; }));
}

struct Prompt {
  std::int64_t before;  // tokens of earlier steps, which every rank has
  std::int64_t tokens;  // those of the step that hands the sequence over
  std::int64_t after;   // those of one more step; then some follow one by one
  static constexpr std::int64_t kSingle = 4;
  [[nodiscard]] std::int64_t length() const { return before + tokens + after + kSingle; }
};

// Outputs and cache after the step, after a long one and after short ones.
std::vector<std::string> play(SequenceFeeder& feeder, FedSequence& sequence, const Prompt& prompt,
                              std::optional<std::int32_t> hand_over_to) {
  std::vector<std::string> texts;
  if (prompt.before > 0) feeder.feed(sequence, prompt.before);
  const FeedPart part{.sequence = &sequence, .tokens = prompt.tokens};
  feeder.step({&part, 1}, 0, hand_over_to);
  texts.push_back(digest_of(feeder, sequence));
  if (prompt.after > 0) feeder.feed(sequence, prompt.after);
  texts.push_back(digest_of(feeder, sequence));
  feeder.feed_to(sequence, sequence.length + Prompt::kSingle, 1);
  texts.push_back(digest_of(feeder, sequence));
  return texts;
}

// To every rank, of steps that are dealt out and of one that is not; pieces longer and shorter than a window. The rank
// that has it then runs long and short steps without the others, who have gone.
TEST(HandOver, TheRankThatHasItHasTheBytesOfOneRank) {
  for (const Prompt prompt :
       {Prompt{0, 1100, 90}, Prompt{0, 333, 40}, Prompt{171, 222, 64}, Prompt{60, kMinTokens - 1, 33}}) {
    const EngineOptions options = options_of_sequences(1, static_cast<std::int32_t>(prompt.length()));
    const LayerRows inputs = inputs_of(21, prompt.length());
    std::vector<std::string> expected;
    {
      const auto engine = make_engine(options);
      SequenceFeeder feeder(*engine);
      FedSequence sequence = feeder.create(inputs);
      expected = play(feeder, sequence, prompt, 0);  // nothing to anybody without other ranks
      EXPECT_EQ(engine->sequence_state(sequence.id)->held_by, -1);
    }
    for (const int size : {2, 3, 4}) {
      for (int holder = 0; holder < size; ++holder) {
        ThreadRanks::run(size, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
          const auto engine = make_engine(divided(options, ranks));
          SequenceFeeder feeder(*engine);
          FedSequence sequence = feeder.create(inputs);
          if (rank == holder) {
            EXPECT_EQ(play(feeder, sequence, prompt, holder), expected)
                << "rank " << rank << " of " << size << ", " << prompt.tokens << " tokens";
            EXPECT_EQ(engine->sequence_state(sequence.id)->held_by, holder);
            return;
          }
          if (prompt.before > 0) feeder.feed(sequence, prompt.before);
          const FeedPart part{.sequence = &sequence, .tokens = prompt.tokens};
          feeder.step({&part, 1}, 0, holder);
          expect_gone(*engine, sequence.id, holder);
          EXPECT_TRUE(nothing_is_held(*engine));
          feeder.release(sequence);
          EXPECT_EQ(engine->release(sequence.id).code(), StatusCode::kStaleHandle);
          // Its place is another's, which every rank has.
          const auto next = engine->create_sequence();
          ASSERT_OK(next);
          EXPECT_EQ(engine->sequence_state(*next)->held_by, -1);
        });
      }
    }
  }
}

// Many sequences in a step, with drafts and padding: cuts go through long ones, short ones end within pieces.
TEST(HandOver, ManySequencesInAStep) {
  constexpr std::array<std::int64_t, 9> kTokens{40, 3, 150, 1, 7, 128, 9, 260, 2};
  EngineOptions options = options_of_sequences(static_cast<std::int32_t>(kTokens.size()), 640);
  options.draft_budget_tokens = 2;
  const LayerRows inputs = inputs_of(22, 400);
  const auto play_all = [&](Engine& engine, std::optional<std::int32_t> hand_over_to, bool holds) {
    SequenceFeeder feeder(engine);
    std::vector<FedSequence> sequences;
    for (std::size_t i = 0; i < kTokens.size(); ++i) sequences.push_back(feeder.create(inputs));
    std::vector<FeedPart> parts;
    for (FedSequence& sequence : sequences) parts.push_back({.sequence = &sequence, .tokens = 17});
    feeder.step(parts);
    for (std::size_t i = 0; i < kTokens.size(); ++i) {
      parts[i].tokens = kTokens[i];
      parts[i].rejected = kTokens[i] > 2 ? static_cast<std::int64_t>(i % 3) : 0;
    }
    feeder.step(parts, 13, hand_over_to);
    std::vector<std::string> texts;
    if (!holds) {
      for (const FedSequence& sequence : sequences) EXPECT_EQ(engine.sequence_state(sequence.id)->length, 0);
      EXPECT_TRUE(nothing_is_held(engine));
      return texts;
    }
    for (FeedPart& part : parts) part = {.sequence = part.sequence, .tokens = 5, .rejected = 1};
    feeder.step(parts);  // long enough to be dealt out, were it everybody's
    for (const FedSequence& sequence : sequences) texts.push_back(digest_of(feeder, sequence));
    return texts;
  };
  const std::vector<std::string> expected = play_all(*make_engine(options), {}, true);
  for (const int size : {2, 4}) {
    const int holder = size - 1;
    ThreadRanks::run(size, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
      const auto engine = make_engine(divided(options, ranks));
      const auto texts = play_all(*engine, holder, rank == holder);
      if (rank == holder) {
        EXPECT_EQ(texts, expected) << size << " ranks";
      }
    });
  }
}

// Prompts are dealt out over all ranks, and each is then one rank's: ranks run their own steps, of different numbers,
// and meet again for the next prompt.
TEST(HandOver, EveryRankGoesOnWithItsOwnSequences) {
  constexpr std::int64_t kTokens = 300;
  constexpr int kRanks = 3;
  const EngineOptions options = options_of_sequences(3, kTokens + 60);
  std::vector<LayerRows> inputs;
  std::vector<std::string> expected;
  for (int i = 0; i < 2 * kRanks; ++i) {
    inputs.push_back(inputs_of(30 + static_cast<std::uint64_t>(i), kTokens + 60));
    const auto engine = make_engine(options);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs.back());
    feeder.feed(sequence, kTokens);
    feeder.feed(sequence, 40);
    expected.push_back(digest_of(feeder, sequence));
  }
  ThreadRanks::run(kRanks, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    SequenceFeeder feeder(*engine);
    for (int i = 0; i < 2 * kRanks; ++i) {
      FedSequence sequence = feeder.create(inputs[static_cast<std::size_t>(i)]);
      const FeedPart part{.sequence = &sequence, .tokens = kTokens};
      feeder.step({&part, 1}, 0, i % kRanks);
      if (i % kRanks == rank) {
        const std::int64_t shares = ThreadRanks::traffic(*ranks).shares;
        // In as many steps as no other rank makes.
        feeder.feed_to(sequence, kTokens + rank, 1);
        feeder.feed_to(sequence, kTokens + 40);
        FedSequence child = feeder.fork(sequence);
        EXPECT_EQ(engine->sequence_state(child.id)->held_by, rank);
        feeder.feed(child, 20);
        feeder.release(child);
        EXPECT_EQ(ThreadRanks::traffic(*ranks).shares, shares) << "nobody else takes part";
        EXPECT_EQ(digest_of(feeder, sequence), expected[static_cast<std::size_t>(i)]) << "rank " << rank;
      }
      feeder.release(sequence);
    }
  });
}

// ---- What is exchanged -----------------------------------------------------------------------------

// As planned, to the byte, with the cache on every rank and on one; and then less. The prompt is cut in steps, of which
// the last hands it over.
TEST(HandOver, RanksGetWhatIsPlannedAndNotMore) {
  const ModelConfig config = [] {
    ModelConfig tiny = ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value();
    tiny.num_hidden_layers = 3;
    tiny.compress_ratios.resize(3);
    return tiny;
  }();
  const LayerSchedule schedule = LayerSchedule::create(config).value();
  const CacheLayout layout = CacheLayout::create(config, schedule, {}).value();
  struct Case {
    std::int32_t tokens;
    std::int32_t step_tokens;
  };
  for (const Case prompt : {Case{1600, 1600}, Case{1300, 512}, Case{532, 512}}) {
    const EngineOptions options = options_of_sequences(1, prompt.tokens);
    const LayerRows inputs = inputs_of(23, prompt.tokens);
    for (const int size : {2, 4}) {
      const PromptExchange planned =
          prompt_exchange(config, schedule, layout, size,
                          {.tokens = prompt.tokens, .step_tokens = prompt.step_tokens, .min_tokens = kMinTokens});
      std::int64_t every = 0;
      std::int64_t one = 0;
      // To nobody, to the first rank, and to the second, which is then at the first one's place.
      for (const std::optional<std::int32_t> holder :
           {std::optional<std::int32_t>(), std::optional(0), std::optional(1)}) {
        if (holder == 1 && planned.steps > 1) continue;
        const bool shared = size == 2;
        const auto traffic = ThreadRanks::run(size, [&](int, const std::shared_ptr<Communicator>& ranks) {
          EngineOptions own = divided(options, ranks);
          own.parallel.context_share_outputs = shared;
          const auto engine = make_engine(own);
          SequenceFeeder feeder(*engine);
          FedSequence sequence = feeder.create(inputs);
          while (sequence.length < prompt.tokens && !testing::Test::HasFatalFailure()) {
            const std::int64_t left = prompt.tokens - sequence.length;
            const FeedPart part{.sequence = &sequence, .tokens = std::min<std::int64_t>(left, prompt.step_tokens)};
            feeder.step({&part, 1}, 0, part.tokens == left ? holder : std::nullopt);
          }
        });
        for (int rank = 0; rank < size; ++rank) {
          const auto place = static_cast<std::size_t>((rank - holder.value_or(0) + size) % size);
          const std::int64_t bytes = (holder ? planned.one : planned.every)[place].total();
          EXPECT_EQ(traffic[static_cast<std::size_t>(rank)].received, bytes + (shared ? planned.outputs[place] : 0))
              << "rank " << rank << " of " << size << ", " << prompt.tokens << " tokens, to " << holder.value_or(-1);
          if (holder != 1) (holder ? one : every) += bytes;
        }
      }
      if (prompt.tokens > prompt.step_tokens) continue;
      // Of pieces 0 to n - 1 every rank has the rows, of the n pieces behind them as many ranks as come before: three
      // quarters of what it was, and less around cuts.
      EXPECT_LE(one, every * 3 / 4) << size << " ranks";
      EXPECT_GE(one, every / 2) << size << " ranks";
    }
  }
}

// What a rank holds of a prompt, against the blocks that it has.
TEST(HandOver, AHeldSequenceTakesWhatIsPlanned) {
  const ModelConfig config = ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value();
  const EngineOptions options = options_of_sequences(1, 640);
  const LayerRows inputs = inputs_of(27, 640);
  const auto engine = make_engine(options);
  ModelConfig three = config;
  three.num_hidden_layers = 3;
  three.compress_ratios.resize(3);
  const LayerSchedule schedule = LayerSchedule::create(three).value();
  const CacheLayout layout = CacheLayout::create(three, schedule, {}).value();
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(inputs);
  for (const std::int64_t length : {1, 3, 4, 255, 256, 257, 640}) {
    feeder.feed_to(sequence, length);
    const auto state = engine->sequence_state(sequence.id);
    ASSERT_OK(state);
    std::int64_t bytes = engine->memory().cache.bytes_per_sequence;
    for (const LayerSpec& spec : engine->layer_specs()) {
      for (int role = 0; role < kCacheRoleCount; ++role) {
        const auto view = engine->cache_view(spec.id, static_cast<CacheRole>(role));
        if (!view.ok() || !view->paged) continue;
        bytes += state->blocks[static_cast<std::size_t>(role)] * view->block_stride_bytes;
      }
    }
    EXPECT_EQ(sequence_cache_bytes(layout, length), bytes) << length << " tokens";
  }
}

// ---- What is refused -------------------------------------------------------------------------------

TEST(HandOver, RefusesWhatCannotBe) {
  EngineOptions options = options_of_sequences(2, 200);
  options.draft_budget_tokens = 2;
  const LayerRows inputs = inputs_of(24, 200);
  const auto expect_refused = [](const Result<Step>& step, StatusCode code, const std::string& text) {
    EXPECT_EQ(step.status().code(), code);
    EXPECT_NE(step.status().message().find(text), std::string::npos) << step.status().message();
  };
  {
    const auto alone = make_engine(options);
    const StepEntry entry{.sequence = alone->create_sequence().value(), .tokens = 40};
    expect_refused(alone->prepare({&entry, 1}, {.hand_over_to = 1}), StatusCode::kInvalidArgument,
                   "prepare: hand_over_to = 1; accepted: ranks 0 to 0");
  }
  ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs);
    const StepEntry entry{.sequence = sequence.id, .tokens = 40};
    for (const std::int32_t to : {-1, 2}) {
      expect_refused(engine->prepare({&entry, 1}, {.hand_over_to = to}), StatusCode::kInvalidArgument,
                     "prepare: hand_over_to = " + std::to_string(to) + "; accepted: ranks 0 to 1");
    }
    // Counts that come later would be those of nothing.
    const auto step = engine->prepare({&entry, 1}, {.hand_over_to = 0});
    ASSERT_OK(step);
    const std::vector<Bf16Bits> x(static_cast<std::size_t>(40 * engine->config().hidden_size));
    std::vector<Bf16Bits> out(x.size());
    for (const LayerId layer : engine->layers()) {
      ASSERT_OK(engine->forward_layer_from_host(*step, layer, x.data(), out.data()));
    }
    const std::int32_t accepted = 40;
    const Status counts = engine->commit_from_device(*step, {&accepted, 1});
    EXPECT_EQ(counts.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(counts.message().find("hands its sequences over to rank 0; accepted: commit"), std::string::npos);
    // A step that is cancelled hands nothing over.
    ASSERT_OK(engine->cancel(*step));
    EXPECT_EQ(engine->sequence_state(sequence.id)->held_by, -1);
    feeder.feed(sequence, 50);
    const FeedPart part{.sequence = &sequence, .tokens = 40};
    feeder.step({&part, 1}, 0, 0);
    if (rank != 0) return;
    expect_refused(engine->prepare({&entry, 1}, {.hand_over_to = 0}), StatusCode::kFailedPrecondition,
                   "the sequences are this rank's alone already");
    // One that every rank has would grow here alone. One that this rank alone has made may be claimed.
    FedSequence other = feeder.create(inputs);
    const StepEntry mixed[] = {{.sequence = sequence.id, .tokens = 20}, {.sequence = other.id, .tokens = 40}};
    expect_refused(engine->prepare(mixed), StatusCode::kFailedPrecondition,
                   "prepare: 1 of the step's 2 sequences are this rank's alone, the others every rank's");
    ASSERT_OK(engine->claim(other.id));
    EXPECT_EQ(engine->sequence_state(other.id)->held_by, 0);
    const FeedPart parts[] = {{.sequence = &sequence, .tokens = 20}, {.sequence = &other, .tokens = 40}};
    const std::int64_t shares = ThreadRanks::traffic(*ranks).shares;
    feeder.step(parts);
    EXPECT_EQ(ThreadRanks::traffic(*ranks).shares, shares);
    // What is restored from a snapshot is no rank's yet.
    const auto snapshot = engine->save_sequence(sequence.id);
    ASSERT_OK(snapshot);
    feeder.release(other);
    const auto restored = engine->restore_sequence(*snapshot);
    ASSERT_OK(restored);
    EXPECT_EQ(engine->sequence_state(*restored)->held_by, -1);
    ASSERT_OK(engine->claim(*restored));
    FedSequence again = sequence;
    again.id = *restored;
    feeder.feed(again, 40);
    EXPECT_EQ(ThreadRanks::traffic(*ranks).shares, shares);
    EXPECT_EQ(engine->claim(other.id).code(), StatusCode::kStaleHandle);
  });
}

TEST(HandOver, RefusedWithAPrefixCache) {
  EngineOptions options = options_of({.max_sequences = 1,
                                      .max_context_tokens = 256,
                                      .max_step_tokens = 128,
                                      .pool_tokens = 512,
                                      .boundary_states = 2});
  ThreadRanks::run(2, [&](int, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    const StepEntry entry{.sequence = engine->create_sequence().value(), .tokens = 40};
    const auto step = engine->prepare({&entry, 1}, {.hand_over_to = 0});
    EXPECT_EQ(step.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(step.status().message().find("limits.boundary_states = 2"), std::string::npos);
    const Status claimed = engine->claim(entry.sequence);
    EXPECT_EQ(claimed.code(), StatusCode::kUnsupported);
    EXPECT_NE(claimed.message().find("claim with limits.boundary_states = 2"), std::string::npos) << claimed.message();
    EXPECT_OK(engine->prepare({&entry, 1}));
  });
}

// ---- Ranks that differ -----------------------------------------------------------------------------

// A rank that prepared a step and cancelled it, because another one could not, has not left the others behind.
TEST(HandOver, ACancelledStepIsNotCounted) {
  const EngineOptions options = options_of_sequences(1, 200);
  const LayerRows inputs = inputs_of(25, 200);
  ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs);
    if (rank == 1) {
      const StepEntry entry{.sequence = sequence.id, .tokens = 100};
      const auto step = engine->prepare({&entry, 1});
      ASSERT_OK(step);
      ASSERT_OK(engine->cancel(*step));
    }
    feeder.feed(sequence, 100);  // the ranks compare where they are
    EXPECT_EQ(ThreadRanks::place(*ranks).step, 1U);
    feeder.feed(sequence, 100);
    EXPECT_EQ(ThreadRanks::place(*ranks).step, 2U);
  });
}

// Ranks that hand a sequence over to different ranks, in a step that nobody shares, do not agree on the next one that
// is shared.
TEST(HandOver, OtherHandOversAreToldAtTheNextSharedStep) {
  const EngineOptions options = options_of_sequences(2, 200);
  const LayerRows inputs = inputs_of(26, 200);
  for (const bool differ : {false, true}) {
    std::array<std::uint64_t, 2> contents{};
    ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
      ThreadRanks::expect_agreement(*ranks, !differ);
      const auto engine = make_engine(divided(options, ranks));
      SequenceFeeder feeder(*engine);
      FedSequence given = feeder.create(inputs);
      const FeedPart part{.sequence = &given, .tokens = kMinTokens - 1};
      feeder.step({&part, 1}, 0, differ ? rank : 0);
      FedSequence shared = feeder.create(inputs);
      feeder.feed(shared, 100);
      contents[static_cast<std::size_t>(rank)] = ThreadRanks::place(*ranks).content;
    });
    EXPECT_EQ(contents[0] == contents[1], !differ);
  }
}

// In which order ranks hand over what nobody shares is their own affair, and so is what of a draft they accept: where
// outputs are not shared the rank that goes on may know it alone.
TEST(HandOver, RanksAgreeOnHandOversInAnyOrder) {
  EngineOptions options = options_of_sequences(3, 200);
  options.draft_budget_tokens = 4;
  const LayerRows inputs = inputs_of(27, 200);
  std::array<std::uint64_t, 2> contents{};
  ThreadRanks::run(2, [&](int rank, const std::shared_ptr<Communicator>& ranks) {
    const auto engine = make_engine(divided(options, ranks));
    SequenceFeeder feeder(*engine);
    std::array<FedSequence, 2> own = {feeder.create(inputs), feeder.create(inputs)};
    FedSequence shared = feeder.create(inputs);
    const std::vector<Bf16Bits> x(static_cast<std::size_t>(10 * engine->config().hidden_size));
    std::vector<Bf16Bits> out(x.size());
    for (const int to : {rank, 1 - rank}) {
      const StepEntry entry{.sequence = own[static_cast<std::size_t>(to)].id, .tokens = 10};
      const auto step = engine->prepare({&entry, 1}, {.hand_over_to = to});
      ASSERT_OK(step);
      for (const LayerId layer : engine->layers()) {
        ASSERT_OK(engine->forward_layer_from_host(*step, layer, x.data(), out.data()));
      }
      const std::int32_t accepted = to == rank ? 7 : 10;
      ASSERT_OK(engine->commit(*step, {&accepted, 1}));
    }
    feeder.feed(shared, 100);
    contents[static_cast<std::size_t>(rank)] = ThreadRanks::place(*ranks).content;
  });
  EXPECT_EQ(contents[0], contents[1]);
}

}  // namespace
}  // namespace dsv4rt::test
