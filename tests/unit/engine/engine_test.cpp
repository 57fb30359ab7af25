// The engine's life cycle and every way to use it wrongly. (Numbers are the golden tests' business.)
#include "dsv4rt/engine.h"

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class EngineTest : public testing::Test {
 protected:
  EngineTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.limits = {.max_sequences = 2, .max_context_tokens = 300, .max_step_tokens = 200, .pool_tokens = 0};
    return options;
  }

  // Runs one layer of a step with random inputs.
  Status forward(Engine& engine, const Step& step, LayerId layer) {
    const auto values = static_cast<std::size_t>(step.tokens * golden_.hidden());
    x_.assign(values, to_bf16(0.5F).bits);
    out_.assign(values, 0);
    return engine.forward_layer_from_host(step, layer, x_.data(), out_.data());
  }
  static Step prepare(Engine& engine, SequenceId sequence, std::int32_t tokens) {
    const StepEntry entry{sequence, tokens};
    const auto step = engine.prepare({&entry, 1});
    EXPECT_OK(step);
    return *step;
  }

  GoldenCase golden_;
  std::vector<Bf16Bits> x_;
  std::vector<Bf16Bits> out_;
};

TEST_F(EngineTest, TellsWhatItHolds) {
  EngineOptions two_layers = options();
  two_layers.first_layer = 1;
  two_layers.layer_count = 2;
  const auto engine = make_engine(two_layers);
  ASSERT_EQ(engine->layers().size(), 2U);
  EXPECT_EQ(engine->layers()[0], LayerId(1));
  EXPECT_EQ(engine->layers()[1], LayerId(2));
  EXPECT_EQ(engine->config().num_hidden_layers, 2);
  const EngineMemory& memory = engine->memory();
  EXPECT_GT(memory.weight_bytes, 0);
  EXPECT_GT(memory.workspace_bytes, 0);
  EXPECT_GT(memory.scratch_bytes, 0);
  EXPECT_EQ(memory.graph_bytes > 0, EngineInspector(*engine).backend().can_capture());
  EXPECT_EQ(memory.total_bytes, memory.weight_bytes + memory.workspace_bytes + memory.scratch_bytes +
                                    memory.graph_bytes + memory.cache.total_bytes);
}

TEST_F(EngineTest, SequencesLiveAndDie) {
  const auto engine = make_engine(options());
  const auto sequence = engine->create_sequence();
  ASSERT_OK(sequence);
  EXPECT_EQ(engine->length(*sequence).value(), 0);
  const Step step = prepare(*engine, *sequence, 5);
  EXPECT_EQ(step.tokens, 5);
  EXPECT_EQ(step.valid_tokens, 5);
  EXPECT_EQ(engine->length(*sequence).value(), 5);
  for (const LayerId layer : engine->layers()) ASSERT_OK(forward(*engine, step, layer));
  ASSERT_OK(engine->commit(step));
  ASSERT_OK(engine->release(*sequence));
  const auto next = engine->create_sequence();
  ASSERT_OK(next);
  EXPECT_EQ(next->index, sequence->index);
  EXPECT_NE(next->generation, sequence->generation);
}

// ---- create() refuses ---------------------------------------------------------------------------

TEST_F(EngineTest, LayersOutsideTheModelAreRefused) {
  const auto refused = [&](std::int32_t first, std::int32_t count) {
    EngineOptions wrong = options();
    wrong.first_layer = first;
    wrong.layer_count = count;
    return fails_with(Engine::create(wrong), StatusCode::kInvalidArgument,
                      {"first_layer " + std::to_string(first), "layer_count " + std::to_string(count), "0 to 2"});
  };
  EXPECT_TRUE(refused(3, 0));
  EXPECT_TRUE(refused(-1, 1));
  EXPECT_TRUE(refused(0, 4));
  EXPECT_TRUE(refused(1, -1));
  EXPECT_TRUE(refused(2147483647, 2147483647));
}

TEST_F(EngineTest, UnknownBackendsProfilesAndThreadsAreNamed) {
  EngineOptions wrong = options();
  wrong.backend = "cuda";
  // Builds with CUDA offer it where there is a device.
  const auto cuda = Engine::create(wrong);
  EXPECT_TRUE(cuda.ok() || fails_with(cuda, StatusCode::kUnsupported, {"cuda"}));
  wrong.backend = "tpu";
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"tpu", "cpu"}));
  wrong = options();
  wrong.profile = "v5";
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"v5", "deepseek-v4", "seed"}));
  wrong = options();
  wrong.threads = -1;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"threads", "-1"}));
  wrong.threads = 1025;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"threads", "1025"}));
}

TEST_F(EngineTest, MissingCheckpointsAreNamed) {
  EngineOptions wrong = options();
  wrong.checkpoint = "/nonexistent/checkpoint";
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kNotFound, {"/nonexistent/checkpoint"}));
}

TEST_F(EngineTest, LimitsThatAreNotPositiveAreNamed) {
  EngineOptions wrong = options();
  wrong.limits.max_sequences = 0;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"max_sequences", "0"}));
  wrong = options();
  wrong.limits.max_step_tokens = -5;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"max_step_tokens", "-5"}));
  wrong = options();
  wrong.limits.max_context_tokens = 0;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"max_context_tokens", "0"}));
  wrong = options();
  wrong.draft_budget_tokens = -1;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"draft_budget_tokens", "-1"}));
  wrong = options();
  wrong.csa_rows_per_block = 3;
  EXPECT_TRUE(fails_with(Engine::create(wrong), StatusCode::kInvalidArgument, {"csa_rows_per_block", "3"}));
}

// A plan of terabytes is refused by its figures: nothing that large could be allocated here.
TEST_F(EngineTest, MemoryLimitIsCheckedBeforeAllocation) {
  EngineOptions large = options();
  large.limits.max_sequences = 1000;
  large.limits.max_context_tokens = 1000000;
  large.memory_limit_bytes = std::int64_t{1} << 30;
  EXPECT_TRUE(fails_with(Engine::create(large), StatusCode::kResourceExhausted,
                         {"1073741824", "weights", "workspace", "SWA_KV", "CSA_KV", "INDEX_K", "HCA_KV", "CSA_STATE",
                          "INDEX_STATE", "HCA_STATE"}));
  const std::int64_t needed = make_engine(options())->memory().total_bytes;
  EngineOptions exact = options();
  exact.memory_limit_bytes = needed;
  EXPECT_OK(Engine::create(exact));
  exact.memory_limit_bytes = needed - 1;
  EXPECT_TRUE(fails_with(Engine::create(exact), StatusCode::kResourceExhausted, {std::to_string(needed)}));
}

// ---- steps used wrongly -------------------------------------------------------------------------

TEST_F(EngineTest, EveryLayerRunsExactlyOnce) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  const Step step = prepare(*engine, sequence, 3);
  ASSERT_OK(forward(*engine, step, LayerId(1)));
  EXPECT_TRUE(
      fails_with(forward(*engine, step, LayerId(1)), StatusCode::kFailedPrecondition, {"layer 1", "already ran"}));
  EXPECT_TRUE(fails_with(engine->commit(step), StatusCode::kFailedPrecondition, {"layer 0", "has not run"}));
  ASSERT_OK(forward(*engine, step, LayerId(0)));  // any order
  EXPECT_TRUE(fails_with(engine->commit(step), StatusCode::kFailedPrecondition, {"layer 2", "has not run"}));
  ASSERT_OK(forward(*engine, step, LayerId(2)));
  EXPECT_OK(engine->commit(step));
}

TEST_F(EngineTest, LayersThatAreNotLoadedAreNamed) {
  EngineOptions one = options();
  one.first_layer = 1;
  one.layer_count = 1;
  const auto engine = make_engine(one);
  const Step step = prepare(*engine, engine->create_sequence().value(), 1);
  for (const std::int32_t layer : {0, 2, -1, 2147483647, -2147483647 - 1}) {
    EXPECT_TRUE(fails_with(forward(*engine, step, LayerId(layer)), StatusCode::kInvalidArgument,
                           {"layer " + std::to_string(layer), "not loaded"}));
  }
  ASSERT_OK(forward(*engine, step, LayerId(1)));
  EXPECT_OK(engine->commit(step));
}

TEST_F(EngineTest, BuffersMustBeTwo) {
  const auto engine = make_engine(options());
  const Step step = prepare(*engine, engine->create_sequence().value(), 1);
  std::vector<Bf16Bits> row(static_cast<std::size_t>(golden_.hidden()));
  EXPECT_TRUE(
      fails_with(engine->forward_layer(step, LayerId(0), row.data(), row.data()), StatusCode::kInvalidArgument, {}));
  EXPECT_TRUE(
      fails_with(engine->forward_layer(step, LayerId(0), nullptr, row.data()), StatusCode::kInvalidArgument, {}));
  EXPECT_TRUE(
      fails_with(engine->forward_layer(step, LayerId(0), row.data(), nullptr), StatusCode::kInvalidArgument, {}));
  EXPECT_OK(engine->cancel(step));
}

TEST_F(EngineTest, OnlyTheOutstandingStepIsAccepted) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  const Step step = prepare(*engine, sequence, 2);
  Step wrong = step;
  ++wrong.serial;
  EXPECT_TRUE(
      fails_with(forward(*engine, wrong, LayerId(0)), StatusCode::kFailedPrecondition, {"not the outstanding"}));
  EXPECT_TRUE(fails_with(engine->commit(wrong), StatusCode::kFailedPrecondition, {"not the outstanding"}));
  EXPECT_TRUE(fails_with(engine->cancel(wrong), StatusCode::kFailedPrecondition, {"not the outstanding"}));
  for (const LayerId layer : engine->layers()) ASSERT_OK(forward(*engine, step, layer));
  ASSERT_OK(engine->commit(step));
  EXPECT_TRUE(fails_with(engine->commit(step), StatusCode::kFailedPrecondition, {"0 means none"}));
  EXPECT_TRUE(fails_with(engine->cancel(step), StatusCode::kFailedPrecondition, {"0 means none"}));
  EXPECT_TRUE(fails_with(engine->commit(Step{}), StatusCode::kFailedPrecondition, {}));
}

TEST_F(EngineTest, NothingElseHappensDuringAStep) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  const Step step = prepare(*engine, sequence, 2);
  const StepEntry entry{sequence, 1};
  EXPECT_TRUE(fails_with(engine->prepare({&entry, 1}), StatusCode::kFailedPrecondition, {}));
  EXPECT_TRUE(fails_with(engine->create_sequence(), StatusCode::kFailedPrecondition, {}));
  EXPECT_TRUE(fails_with(engine->fork(sequence), StatusCode::kFailedPrecondition, {}));
  EXPECT_TRUE(fails_with(engine->truncate(sequence, 0), StatusCode::kFailedPrecondition, {}));
  EXPECT_TRUE(fails_with(engine->release(sequence), StatusCode::kFailedPrecondition, {}));
  for (const LayerId layer : engine->layers()) ASSERT_OK(forward(*engine, step, layer));  // still intact
  EXPECT_OK(engine->commit(step));
}

TEST_F(EngineTest, StaleIdsAreRefusedEverywhere) {
  const auto engine = make_engine(options());
  const SequenceId old = engine->create_sequence().value();
  ASSERT_OK(engine->release(old));
  const SequenceId present = engine->create_sequence().value();
  ASSERT_EQ(present.index, old.index);
  for (const SequenceId stale : {old, SequenceId{}, SequenceId{77, 1}}) {
    const StepEntry entry{stale, 1};
    EXPECT_TRUE(fails_with(engine->prepare({&entry, 1}), StatusCode::kStaleHandle, {}));
    EXPECT_TRUE(fails_with(engine->fork(stale), StatusCode::kStaleHandle, {}));
    EXPECT_TRUE(fails_with(engine->truncate(stale, 0), StatusCode::kStaleHandle, {}));
    EXPECT_TRUE(fails_with(engine->release(stale), StatusCode::kStaleHandle, {}));
    EXPECT_TRUE(fails_with(engine->length(stale), StatusCode::kStaleHandle, {}));
  }
  EXPECT_OK(engine->release(present));
}

TEST_F(EngineTest, HandlesOfAnotherEngineAreRefusedEverywhere) {
  const auto engine = make_engine(options());
  const auto other = make_engine(options());
  const SequenceId mine = engine->create_sequence().value();
  const SequenceId foreign = other->create_sequence().value();
  ASSERT_EQ(mine.index, foreign.index);
  const StepEntry entry{foreign, 1};
  for (const Status& refused :
       {engine->prepare({&entry, 1}).status(), engine->fork(foreign).status(), engine->truncate(foreign, 0),
        engine->release(foreign), engine->length(foreign).status(), engine->save_sequence(foreign).status(),
        engine->snapshot_bytes(foreign).status()}) {
    EXPECT_TRUE(fails_with(refused, StatusCode::kStaleHandle, {"another engine"}));
  }
  const Step step = prepare(*engine, mine, 1);
  const Step foreign_step = prepare(*other, foreign, 1);
  EXPECT_TRUE(fails_with(forward(*engine, foreign_step, engine->layers()[0]), StatusCode::kFailedPrecondition, {}));
  EXPECT_TRUE(fails_with(engine->commit(foreign_step), StatusCode::kFailedPrecondition, {}));
  EXPECT_TRUE(fails_with(engine->cancel(foreign_step), StatusCode::kFailedPrecondition, {}));
  EXPECT_OK(engine->cancel(step));
}

TEST_F(EngineTest, StepsBeyondTheLimitsChangeNothing) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  for (const std::int32_t tokens : {0, -1, 201}) {
    const StepEntry entry{sequence, tokens};
    EXPECT_TRUE(fails_with(engine->prepare({&entry, 1}), StatusCode::kInvalidArgument, {std::to_string(tokens)}));
  }
  const StepEntry twice[] = {{sequence, 1}, {sequence, 1}};
  EXPECT_FALSE(engine->prepare(twice).ok());
  const StepEntry fine{sequence, 2};
  EXPECT_FALSE(engine->prepare({&fine, 1}, {.pad_to_tokens = 1}).ok());
  EXPECT_FALSE(engine->prepare({&fine, 1}, {.pad_to_tokens = 201}).ok());
  EXPECT_FALSE(engine->prepare({}).ok());
  EXPECT_EQ(engine->length(sequence).value(), 0);
  SequenceFeeder feeder(*engine);
  FedSequence fed{
      .id = sequence, .inputs = random_rows(1, 3, 300, golden_.hidden()), .outputs = LayerRows(3), .length = 0};
  feeder.feed_to(fed, 300, 200);
  const StepEntry beyond{sequence, 1};
  EXPECT_FALSE(engine->prepare({&beyond, 1}).ok()) << "max_context_tokens is 300";
  EXPECT_EQ(engine->length(sequence).value(), 300);
}

TEST_F(EngineTest, AdmissionAndReservationsAgree) {
  EngineOptions small = options();
  small.limits.pool_tokens = 300;
  const auto engine = make_engine(small);
  EXPECT_OK(engine->can_admit(300));
  EXPECT_FALSE(engine->can_admit(301).ok());
  ASSERT_OK(engine->create_sequence(300));
  ASSERT_OK(engine->create_sequence());
  EXPECT_TRUE(fails_with(engine->can_admit(1), StatusCode::kResourceExhausted, {}));
  EXPECT_TRUE(fails_with(engine->create_sequence(), StatusCode::kResourceExhausted, {"2", "max_sequences"}));
}

// ---- step() -------------------------------------------------------------------------------------

TEST_F(EngineTest, WholeStepsGiveWhatLayersGiveOneByOne) {
  const auto engine = make_engine(options());
  const auto inputs = random_rows(3, 3, 6, golden_.hidden());
  SequenceFeeder feeder(*engine);
  FedSequence fed = feeder.create(inputs);
  feeder.feed_to(fed, 6);

  const Step step = prepare(*engine, engine->create_sequence().value(), 6);
  std::size_t layer = 0;
  ASSERT_OK(engine->step(step, inputs[0].data(), [&](const LayerOutput& output) -> Status {
    EXPECT_EQ(output.layer, engine->layers()[layer]);
    EXPECT_TRUE(std::equal(fed.outputs[layer].begin(), fed.outputs[layer].end(), output.output));
    ++layer;
    EXPECT_EQ(output.next_input == nullptr, layer == 3);
    if (layer < 3) std::copy(inputs[layer].begin(), inputs[layer].end(), output.next_input);
    return {};
  }));
  EXPECT_EQ(layer, 3U);
  EXPECT_OK(engine->commit(step));
}

TEST_F(EngineTest, AFailingHookEndsTheStep) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  const auto inputs = random_rows(3, 1, 6, golden_.hidden());
  const Step step = prepare(*engine, sequence, 6);
  int calls = 0;
  const Status status = engine->step(step, inputs[0].data(), [&](const LayerOutput&) {
    ++calls;
    return Status(StatusCode::kInternal, "experts are on strike");
  });
  EXPECT_TRUE(fails_with(status, StatusCode::kInternal, {"strike"}));
  EXPECT_EQ(calls, 1);
  const auto emptied = engine->cancel(step);
  ASSERT_OK(emptied);
  EXPECT_TRUE(emptied->empty());
  EXPECT_EQ(engine->length(sequence).value(), 0);
}

}  // namespace
}  // namespace dsv4rt::test
