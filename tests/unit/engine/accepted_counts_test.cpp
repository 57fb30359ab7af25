// Accepted counts that only the device knows: whatever they are, steps that ran on without waiting leave the bytes of
// plain decoding, and a count that cannot be costs nobody but its own sequence.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kDrafts = 3;

class AcceptedCountsTest : public testing::Test {
 protected:
  AcceptedCountsTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  [[nodiscard]] EngineOptions options(std::int64_t pool_tokens = 0) const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = kDrafts;
    options.limits = {
        .max_sequences = 4, .max_context_tokens = 400, .max_step_tokens = 320, .pool_tokens = pool_tokens};
    options.poison_freed_blocks = true;
    return options;
  }

  Engine* open(const EngineOptions& options) {
    engines_.push_back(make_engine(options));
    return engines_.back().get();
  }
  void close() {
    device_counts_.clear();
    engines_.clear();
  }

  // One sequence's part of a step: `kept` rows of its trace from `first` on, then rows that nobody asked for.
  struct Part {
    FedSequence* sequence = nullptr;
    std::int32_t tokens = 1;
    std::int32_t kept = 1;
  };

  // Counts as the host's kernels leave them in backend memory, each step's in memory of its own.
  std::span<const std::int32_t> on_device(Engine& engine, std::vector<std::int32_t> counts) {
    EngineInspector inspector(engine);
    const std::size_t bytes = counts.size() * sizeof(std::int32_t);
    device_counts_.push_back(inspector.backend().allocate(bytes, "counts of a test").value());
    EXPECT_OK(inspector.backend().upload(device_counts_.back().data(), counts.data(), bytes));
    return {device_counts_.back().as<std::int32_t>(), counts.size()};
  }

  static Result<Step> prepare(Engine& engine, std::span<const Part> parts) {
    std::vector<StepEntry> entries;
    for (const Part& part : parts) entries.push_back({part.sequence->id, part.tokens});
    return engine.prepare(entries);
  }
  // Every layer with the sequences' inputs; outputs of kept tokens are noted.
  void run(Engine& engine, const Step& step, std::span<const Part> parts) {
    const std::int64_t hidden = golden_.hidden();
    for (std::size_t layer = 0; layer < engine.layers().size(); ++layer) {
      std::vector<Bf16Bits> x;
      for (const Part& part : parts) {
        const auto first = part.sequence->inputs[layer].begin() + part.sequence->length * hidden;
        x.insert(x.end(), first, first + part.kept * hidden);
        x.insert(x.end(), static_cast<std::size_t>((part.tokens - part.kept) * hidden), Bf16Bits{0x4123});
      }
      std::vector<Bf16Bits> out(x.size());
      ASSERT_OK(engine.forward_layer_from_host(step, engine.layers()[layer], x.data(), out.data()));
      auto row = out.begin();
      for (const Part& part : parts) {
        auto& outputs = part.sequence->outputs[layer];
        outputs.insert(outputs.end(), row, row + part.kept * hidden);
        row += part.tokens * hidden;
      }
    }
    for (const Part& part : parts) part.sequence->length += part.kept;
  }
  // A whole step whose counts stay on the device.
  Step advance(Engine& engine, const std::vector<Part>& parts) {
    const auto step = prepare(engine, parts);
    EXPECT_OK(step);
    run(engine, *step, parts);
    std::vector<std::int32_t> counts;
    for (const Part& part : parts) counts.push_back(part.kept);
    EXPECT_OK(engine.commit_from_device(*step, on_device(engine, counts)));
    return *step;
  }

  FedSequence create(Engine& engine, std::int64_t tokens, std::int64_t reserve = 0) {
    FedSequence sequence{.id = engine.create_sequence(reserve).value(),
                         .inputs = golden_.inputs,
                         .outputs = LayerRows(engine.layers().size()),
                         .length = 0};
    SequenceFeeder(engine).feed_to(sequence, tokens, 256);
    return sequence;
  }

  // Outputs and cache are those of a sequence that was decoded token by token in another engine.
  void expect_plain(Engine& engine, const FedSequence& sequence) {
    EXPECT_EQ(engine.length(sequence.id).value(), sequence.length);
    const auto plain = make_engine(options());
    SequenceFeeder feeder(*plain);
    FedSequence expected = feeder.create(golden_.inputs);
    feeder.feed_to(expected, sequence.length, 256);
    EXPECT_TRUE(sequence.outputs == expected.outputs) << "outputs at " << sequence.length;
    EXPECT_EQ(SequenceFeeder(engine).digests(sequence), feeder.digests(expected)) << sequence.length;
  }
  static void expect_refused(const Status& status, StatusCode code, const std::string& part) {
    EXPECT_EQ(status.code(), code) << status.to_string();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.to_string();
  }

  GoldenCase golden_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::deque<Buffer> device_counts_;  // goes before the engines, whose memory it is
};

// Every count of a verification, at lengths around the ends of blocks and windows, while the next step is already
// prepared and run.
TEST_F(AcceptedCountsTest, EveryCountLeavesTheBytesOfPlainDecoding) {
  for (std::int32_t kept = 0; kept <= kDrafts + 1; ++kept) {
    for (const std::int64_t length : {1, 3, 126, 127, 128, 253, 255}) {
      SCOPED_TRACE(std::to_string(kept) + " of 4 stay at " + std::to_string(length));
      Engine* const engine = open(options());
      FedSequence sequence = create(*engine, length);
      for (int step = 0; step < 3; ++step) advance(*engine, {{&sequence, kDrafts + 1, kept}});
      EXPECT_EQ(engine->length(sequence.id).value(), length + 2 * kept + kDrafts + 1) << "not yet known to the host";
      ASSERT_OK(engine->settle());
      expect_plain(*engine, sequence);
      SequenceFeeder(*engine).feed_to(sequence, length + 20, 5);
      expect_plain(*engine, sequence);
      close();
    }
  }
}

// Prompts, decodes and verifications in one batch, whose members come and go from step to step.
TEST_F(AcceptedCountsTest, MixedBatchesOfChangingMembers) {
  Engine* const engine = open(options());
  FedSequence a = create(*engine, 125);
  FedSequence b = create(*engine, 40);
  FedSequence c = create(*engine, 0);
  FedSequence d = create(*engine, 250);
  advance(*engine, {{&a, 4, 1}, {&c, 140, 140}, {&b, 1, 1}});
  advance(*engine, {{&b, 4, 4}, {&a, 4, 3}, {&d, 3, 0}});  // c waits for its counts
  advance(*engine, {{&c, 2, 2}, {&d, 4, 2}});
  advance(*engine, {{&a, 1, 1}, {&b, 4, 2}, {&c, 4, 0}, {&d, 4, 4}});
  advance(*engine, {{&d, 1, 1}, {&c, 30, 28}, {&b, 1, 0}, {&a, 4, 2}});
  ASSERT_OK(engine->settle());
  for (const FedSequence* sequence : {&a, &b, &c, &d}) expect_plain(*engine, *sequence);
}

// A reservation is settled with the counts, and blocks that nobody needs come back.
TEST_F(AcceptedCountsTest, BlocksComeBackAndReservationsHold) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 254, 300);
  FedSequence other = create(*engine, 10);
  for (int i = 0; i < 4; ++i) advance(*engine, {{&sequence, 4, 1}, {&other, 4, 0}});
  ASSERT_OK(engine->settle());
  Engine* const plain = open(options());
  FedSequence expected = create(*plain, sequence.length, 300);
  const FedSequence neighbour = create(*plain, other.length);
  const EngineState state = engine->state().value();
  const EngineState of_plain = plain->state().value();
  ASSERT_EQ(state.roles.size(), of_plain.roles.size());
  for (std::size_t i = 0; i < state.roles.size(); ++i) {
    EXPECT_EQ(state.roles[i].used_blocks, of_plain.roles[i].used_blocks) << i;
    EXPECT_EQ(state.roles[i].reserved_blocks, of_plain.roles[i].reserved_blocks) << i;
  }
  EXPECT_EQ(engine->sequence_state(sequence.id)->blocks, plain->sequence_state(expected.id)->blocks);
}

// Where all drafts together would not fit, the counts are waited for: nothing is refused that plain decoding can do.
TEST_F(AcceptedCountsTest, AStepThatFitsOnlyWithoutTheRejectedTokensIsPrepared) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 393);
  advance(*engine, {{&sequence, 4, 1}});  // 394 of 400; 397 if all stayed
  advance(*engine, {{&sequence, 4, 1}});
  advance(*engine, {{&sequence, 4, 4}});
  EXPECT_EQ(engine->length(sequence.id).value(), 399);
  const Part two{&sequence, 2, 2};
  expect_refused(prepare(*engine, {&two, 1}).status(), StatusCode::kInvalidArgument, "tokens = 2 after 399");
}

TEST_F(AcceptedCountsTest, CallsThatChangeSequencesApplyTheCounts) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 126);
  SequenceFeeder feeder(*engine);
  advance(*engine, {{&sequence, 4, 2}});
  FedSequence child = feeder.fork(sequence);
  EXPECT_EQ(engine->length(child.id).value(), 128);
  advance(*engine, {{&sequence, 4, 1}, {&child, 4, 3}});
  const auto saved = engine->save_sequence(sequence.id);
  ASSERT_OK(saved);
  EXPECT_EQ(engine->length(sequence.id).value(), 129);
  advance(*engine, {{&child, 4, 1}});
  feeder.truncate(child, 131);
  advance(*engine, {{&child, 4, 1}});
  feeder.release(sequence);
  expect_plain(*engine, child);
}

// The size that is told is that of what will be saved, while the counts are under way too.
TEST_F(AcceptedCountsTest, TheSizeOfASnapshotIsThatOfTheCounts) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 126);
  advance(*engine, {{&sequence, 4, 1}});
  const auto bytes = engine->snapshot_bytes(sequence.id);
  ASSERT_OK(bytes);
  EXPECT_EQ(engine->length(sequence.id).value(), 127);
  advance(*engine, {{&sequence, 4, 0}});
  const auto saved = engine->save_sequence(sequence.id);
  ASSERT_OK(saved);
  EXPECT_EQ(*bytes, static_cast<std::int64_t>(saved->size()));
  Engine* const other = open(options());
  FedSequence restored = sequence;
  const auto id = other->restore_sequence(*saved);
  ASSERT_OK(id);
  restored.id = *id;
  expect_plain(*other, restored);

  // A count that cannot be is left to the call that changes something.
  const Part part{&sequence, 4, 4};
  const auto step = prepare(*engine, {&part, 1});
  ASSERT_OK(step);
  run(*engine, *step, {&part, 1});
  ASSERT_OK(engine->commit_from_device(*step, on_device(*engine, {9})));
  const auto of_all = engine->snapshot_bytes(sequence.id);
  ASSERT_OK(of_all);
  expect_refused(engine->save_sequence(sequence.id).status(), StatusCode::kInvalidArgument, "accepted[0] = 9");
  EXPECT_EQ(engine->save_sequence(sequence.id)->size(), static_cast<std::size_t>(*of_all));
}

// Before its first layer a step leaves nothing; after it, sequences go back to where they really were.
TEST_F(AcceptedCountsTest, TheStepBehindMayBeCancelled) {
  for (const bool begun : {false, true}) {
    for (std::int32_t kept = 0; kept <= kDrafts + 1; ++kept) {
      SCOPED_TRACE(std::to_string(kept) + (begun ? " begun" : " prepared"));
      Engine* const engine = open(options());
      FedSequence sequence = create(*engine, 126);
      FedSequence other = create(*engine, 20);
      advance(*engine, {{&sequence, 4, kept}, {&other, 2, 1}});
      FedSequence lost = sequence;
      FedSequence late = create(*engine, 0);
      advance(*engine, {{&late, 5, 5}, {&sequence, 4, kept}});
      lost = sequence;
      const std::vector<Part> parts{{&lost, 4, 2}};
      const auto step = prepare(*engine, parts);
      ASSERT_OK(step);
      if (begun) run(*engine, *step, parts);
      const auto emptied = engine->cancel(*step);
      ASSERT_OK(emptied);
      EXPECT_TRUE(emptied->empty());
      ASSERT_OK(engine->settle());
      for (const FedSequence* each : {&sequence, &other, &late}) expect_plain(*engine, *each);
      advance(*engine, {{&sequence, 4, 3}, {&late, 1, 1}});
      ASSERT_OK(engine->settle());
      for (const FedSequence* each : {&sequence, &late}) expect_plain(*engine, *each);
      close();
    }
  }
}

// The counts may be committed by the host in between, in any order.
TEST_F(AcceptedCountsTest, HostAndDeviceCountsMix) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 120);
  SequenceFeeder feeder(*engine);
  for (std::int32_t kept = 0; kept <= kDrafts + 1; ++kept) {
    advance(*engine, {{&sequence, 4, kept}});
    const FeedPart part{.sequence = &sequence, .tokens = 4, .rejected = kept % 4};
    feeder.step({&part, 1});
    expect_plain(*engine, sequence);
  }
}

TEST_F(AcceptedCountsTest, CountsAreThereForTheHostWithoutBeingApplied) {
  Engine* const engine = open(options());
  FedSequence a = create(*engine, 10);
  FedSequence b = create(*engine, 20);
  std::vector<Step> steps;
  for (std::int32_t i = 0; i < 9; ++i) steps.push_back(advance(*engine, {{&a, 4, 1 + i % 4}, {&b, 4, 4 - i % 4}}));
  ASSERT_OK(engine->synchronize());
  expect_refused(engine->accepted_counts(steps[0]).status(), StatusCode::kFailedPrecondition, "last 8");
  for (std::int32_t i = 1; i < 9; ++i) {
    const auto counts = engine->accepted_counts(steps[static_cast<std::size_t>(i)]);
    ASSERT_OK(counts);
    EXPECT_TRUE(counts->known);
    EXPECT_EQ(counts->accepted, (std::vector<std::int32_t>{1 + i % 4, 4 - i % 4}));
  }
  EXPECT_GT(engine->length(a.id).value(), a.length);
  ASSERT_OK(engine->settle());
  EXPECT_EQ(engine->length(a.id).value(), a.length);
  expect_refused(engine->accepted_counts(Step{}).status(), StatusCode::kFailedPrecondition, "step 0");
}

// A wrong count: its sequence has all of its tokens, here and in the step that ran since; neighbours have theirs.
TEST_F(AcceptedCountsTest, AWrongCountIsToldOnceAndCostsNobodyElse) {
  for (const std::int32_t wrong : {-1, 5, -2147483647, 2147483647}) {
    SCOPED_TRACE(wrong);
    Engine* const engine = open(options());
    FedSequence a = create(*engine, 126);
    FedSequence b = create(*engine, 127);
    const std::vector<Part> parts{{&a, 4, 2}, {&b, 4, 4}};
    const auto step = prepare(*engine, parts);
    ASSERT_OK(step);
    run(*engine, *step, parts);
    ASSERT_OK(engine->commit_from_device(*step, on_device(*engine, {2, wrong})));
    const std::vector<Part> behind{{&b, 4, 1}, {&a, 4, 3}};
    const auto next = prepare(*engine, behind);
    ASSERT_OK(next);
    run(*engine, *next, behind);
    const std::string text = "accepted[1] = " + std::to_string(wrong) + " of sequence index " +
                             std::to_string(b.id.index) + "; accepted: 0 .. 4";
    const auto counts = on_device(*engine, {1, 3});
    const Status refused = engine->commit_from_device(*next, counts);
    expect_refused(refused, StatusCode::kInvalidArgument, text);
    expect_refused(refused, StatusCode::kInvalidArgument, "step " + std::to_string(step->serial));
    EXPECT_EQ(engine->state()->step, next->serial) << "the step is still there";
    ASSERT_OK(engine->commit_from_device(*next, counts));
    ASSERT_OK(engine->settle());
    expect_plain(*engine, a);
    expect_plain(*engine, b);
    close();
  }
}

// More than the rings can take back of a prompt is such a count too. A cancel does not tell, the call after it does.
TEST_F(AcceptedCountsTest, ACancelLeavesAWrongCountToTheNextCall) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 0);
  const std::vector<Part> prompt{{&sequence, 100, 100}};
  const auto step = prepare(*engine, prompt);
  ASSERT_OK(step);
  run(*engine, *step, prompt);
  ASSERT_OK(engine->commit_from_device(*step, on_device(*engine, {95})));
  FedSequence lost = sequence;
  const std::vector<Part> behind{{&lost, 4, 1}};
  const auto next = prepare(*engine, behind);
  ASSERT_OK(next);
  run(*engine, *next, behind);
  ASSERT_OK(engine->cancel(*next));
  const Part again{&sequence, 1, 1};
  expect_refused(prepare(*engine, {&again, 1}).status(), StatusCode::kInvalidArgument,
                 "accepted[0] = 95 of sequence index " + std::to_string(sequence.id.index) + "; accepted: 96 .. 100");
  advance(*engine, {again});
  ASSERT_OK(engine->settle());
  expect_plain(*engine, sequence);
}

TEST_F(AcceptedCountsTest, WrongCallsChangeNothing) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 10);
  const std::vector<Part> parts{{&sequence, 4, 2}};
  const auto counts = on_device(*engine, {2, 2});
  ASSERT_OK(engine->settle());
  expect_refused(engine->commit_from_device(Step{}, counts.first(1)), StatusCode::kFailedPrecondition, "outstanding");
  const auto step = prepare(*engine, parts);
  ASSERT_OK(step);
  expect_refused(engine->commit_from_device(*step, counts.first(1)), StatusCode::kFailedPrecondition, "layer 0");
  expect_refused(engine->settle(), StatusCode::kFailedPrecondition, "is outstanding");
  run(*engine, *step, parts);
  expect_refused(engine->commit_from_device(*step, counts), StatusCode::kInvalidArgument, "accepted has 2 entries");
  expect_refused(engine->commit_from_device(*step, {}), StatusCode::kInvalidArgument, "accepted has 0 entries");
  const auto* odd = reinterpret_cast<const std::int32_t*>(reinterpret_cast<const std::byte*>(counts.data()) + 2);
  expect_refused(engine->commit_from_device(*step, {odd, 1}), StatusCode::kInvalidArgument, "2 bytes past");
  const std::int32_t* null = nullptr;
  expect_refused(engine->commit_from_device(*step, {null, 1}), StatusCode::kInvalidArgument, "null");
  ASSERT_OK(engine->commit_from_device(*step, counts.first(1)));
  expect_refused(engine->commit(*step), StatusCode::kFailedPrecondition, "is not the outstanding step");
  ASSERT_OK(engine->settle());
  expect_plain(*engine, sequence);

  EngineOptions without = options();
  without.draft_budget_tokens = 0;
  Engine* const plain = open(without);
  FedSequence other = create(*plain, 10);
  const std::vector<Part> one{{&other, 1, 1}};
  const auto decode = prepare(*plain, one);
  ASSERT_OK(decode);
  run(*plain, *decode, one);
  expect_refused(plain->commit_from_device(*decode, counts.first(1)), StatusCode::kFailedPrecondition,
                 "draft_budget_tokens = 0");
  EXPECT_OK(plain->commit(*decode));
}

TEST_F(AcceptedCountsTest, MemoryOfAnotherDeviceIsRefusedOnTheCpu) {
  Engine* const engine = open(options());
  BackendSwap backend(*engine);
  FedSequence sequence = create(*engine, 10);
  const std::vector<Part> parts{{&sequence, 4, 2}};
  const auto step = prepare(*engine, parts);
  ASSERT_OK(step);
  run(*engine, *step, parts);
  const auto counts = on_device(*engine, {2});
  backend->foreign = counts.data();
  expect_refused(engine->commit_from_device(*step, counts), StatusCode::kInvalidArgument,
                 "accepted is not memory of the engine's device");
  backend->foreign = nullptr;
  ASSERT_OK(engine->commit_from_device(*step, counts));
  ASSERT_OK(engine->settle());
  expect_plain(*engine, sequence);
}

// What is cached of a prefix depends on the counts: the next step waits for them, and hits are those of plain decoding.
TEST_F(AcceptedCountsTest, PrefixesAreThoseOfTheCounts) {
  EngineOptions with = options();
  with.limits.boundary_states = 8;
  with.prefix_cache.policy.interval_tokens = 128;
  Engine* const engine = open(with);
  std::vector<std::int32_t> ids(300);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % 97);
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs, ids);
  feeder.feed_to(sequence, 124);
  std::vector<std::int32_t> drafts(4, 77);
  for (const std::int32_t kept : {2, 4, 1, 3}) {
    std::copy_n(ids.begin() + sequence.length, kept, drafts.begin());
    std::fill(drafts.begin() + kept, drafts.end(), 77);
    const StepEntry entry{sequence.id, 4, drafts.data()};
    const auto step = engine->prepare({&entry, 1});
    ASSERT_OK(step);
    const Part part{&sequence, 4, kept};
    run(*engine, *step, {&part, 1});
    ASSERT_OK(engine->commit_from_device(*step, on_device(*engine, {kept})));
    if (kept == 1) {
      EXPECT_OK(engine->can_admit(10)) << "the counts of the other steps wait for prepare and release";
    }
  }
  ASSERT_OK(engine->release(sequence.id));
  const auto start = engine->create_sequence(ids, SequenceOptions{});
  ASSERT_OK(start);
  EXPECT_EQ(start->hit_tokens, 128);
  sequence.id = start->sequence;
  sequence.length = 128;
  for (auto& rows : sequence.outputs) rows.resize(static_cast<std::size_t>(128 * golden_.hidden()));
  expect_plain(*engine, sequence);
}

// Admission is asked of what is there without the rejected tokens, as the sequence that is then created finds it.
TEST_F(AcceptedCountsTest, AdmissionKnowsTheCounts) {
  const auto most_admitted = [](const Engine& engine) {
    std::int64_t tokens = 0;
    while (engine.can_admit(tokens + 1).ok()) ++tokens;
    return tokens;
  };
  Engine* const engine = open(options(400));
  Engine* const plain = open(options(400));
  std::vector<SequenceId> others;  // they leave room for part of a fourth sequence
  for (Engine* const each : {engine, engine, plain, plain}) others.push_back(each->create_sequence(300).value());
  FedSequence sequence = create(*engine, 257);
  FedSequence expected = create(*plain, 258);
  const std::int64_t most = most_admitted(*plain);
  SequenceFeeder(*plain).feed_to(expected, 261, 3);
  ASSERT_LT(most_admitted(*plain), most) << "as if all four stayed";

  advance(*engine, {{&sequence, 4, 1}});
  const StepEntry behind{others[0], 1};
  const auto step = engine->prepare({&behind, 1});
  ASSERT_OK(step);
  expect_refused(engine->can_admit(most), StatusCode::kFailedPrecondition, "is outstanding");
  EXPECT_EQ(engine->length(sequence.id).value(), 261) << "the counts stay under way";
  ASSERT_OK(engine->cancel(*step));
  EXPECT_OK(engine->can_admit(most));
  EXPECT_EQ(engine->length(sequence.id).value(), 258);
  EXPECT_OK(engine->create_sequence(most));
}

// What the counts made cached is told by the call that waited for them, whatever it answers.
TEST_F(AcceptedCountsTest, PrefixEventsAreToldWithAWrongCount) {
  EngineOptions with = options();
  with.limits.boundary_states = 8;
  with.prefix_cache.policy.interval_tokens = 128;
  std::vector<std::int64_t> stored;
  with.prefix_cache.on_event = [&](const PrefixEvent& event) {
    if (event.kind == PrefixEvent::Kind::kUnitStored) stored.push_back(event.end_tokens);
  };
  Engine* const engine = open(with);
  const std::vector<std::int32_t> ids(300, 7);
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden_.inputs, ids);
  feeder.feed_to(sequence, 124);
  const StepEntry entry{sequence.id, 4, ids.data()};
  const auto step = engine->prepare({&entry, 1});
  ASSERT_OK(step);
  const Part part{&sequence, 4, 4};
  run(*engine, *step, {&part, 1});
  ASSERT_OK(engine->commit_from_device(*step, on_device(*engine, {5})));
  EXPECT_TRUE(stored.empty());
  expect_refused(engine->release(sequence.id), StatusCode::kInvalidArgument, "accepted[0] = 5");
  EXPECT_EQ(stored, std::vector<std::int64_t>{128});
}

TEST_F(AcceptedCountsTest, MetricsCountWhatWasAccepted) {
  Engine* const engine = open(options());
  FedSequence sequence = create(*engine, 10);
  advance(*engine, {{&sequence, 4, 1}});
  advance(*engine, {{&sequence, 4, 3}});
  ASSERT_OK(engine->settle());
  const std::string text = engine->metrics().value();
  EXPECT_NE(text.find("dsv4rt_step_tokens_total{outcome=\"accepted\"} 14"), std::string::npos) << text;
  EXPECT_NE(text.find("dsv4rt_step_tokens_total{outcome=\"rejected\"} 4"), std::string::npos) << text;
}

}  // namespace
}  // namespace dsv4rt::test
