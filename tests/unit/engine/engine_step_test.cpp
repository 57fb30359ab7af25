// A step is a transaction: whatever fails in it, it can be repeated, cancelled or the engine says that it is broken.
// The backend is the CPU's, made to capture and to fail.
#include <stdexcept>

#include <gtest/gtest.h>

#include "engine/step_shape.h"
#include "support/capturing_backend.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class EngineStepTest : public testing::Test {
 protected:
  EngineStepTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  [[nodiscard]] EngineOptions options() const {
    EngineOptions options = golden_.options();
    options.draft_budget_tokens = 3;
    options.csa_rows_per_block = 16;
    options.hca_rows_per_block = 2;
    options.limits = {.max_sequences = 3, .max_context_tokens = 393, .max_step_tokens = 393, .pool_tokens = 0};
    return options;
  }
  static Step prepare(Engine& engine, SequenceId sequence, std::int32_t tokens, bool capture = false) {
    const StepEntry entry{sequence, tokens};
    auto step = engine.prepare({&entry, 1}, {.pad_to_tokens = 0, .capture = capture});
    EXPECT_OK(step);
    return step.value();
  }
  // A sequence of 90 tokens and its fork: the next step copies blocks.
  struct Family {
    FedSequence parent;
    FedSequence child;
  };
  Family make_family(SequenceFeeder& feeder) {
    Family family{.parent = feeder.create(golden_.inputs), .child = {}};
    feeder.feed_to(family.parent, 90);
    family.child = feeder.fork(family.parent);
    return family;
  }
  // Runs a prepared step layer by layer; the outputs.
  LayerRows run_layers(Engine& engine, const Step& step, const LayerRows& x) {
    LayerRows outputs;
    for (std::size_t i = 0; i < engine.layers().size(); ++i) {
      outputs.emplace_back(static_cast<std::size_t>(step.tokens * golden_.hidden()));
      EXPECT_OK(engine.forward_layer(step, engine.layers()[i], x[i].data(), outputs[i].data()));
    }
    return outputs;
  }
  // Runs a whole step; every layer gets `x`'s rows by the hook's work, which becomes part of a graph.
  LayerRows run_whole(Engine& engine, CapturingBackend& backend, const Step& step, const LayerRows& x) {
    LayerRows outputs(engine.layers().size());
    std::size_t layer = 0;
    const auto rows = static_cast<std::ptrdiff_t>(step.valid_tokens * golden_.hidden());
    std::copy_n(x[0].begin(), rows, engine.input());
    EXPECT_OK(engine.step(
        step, engine.input(),
        [&](const LayerOutput& output) -> Status {
          const std::size_t number = layer++;
          backend.enqueue([&outputs, &x, output, number, rows] {
            outputs[number].assign(output.output, output.output + rows);
            if (output.next_input != nullptr) std::copy_n(x[number + 1].begin(), rows, output.next_input);
          });
          return {};
        },
        ++hook_key_));
    return outputs;
  }

  GoldenCase golden_;
  std::uint64_t hook_key_ = 0;
};

// ---- Captures -----------------------------------------------------------------------------------

TEST_F(EngineStepTest, CapturedStepsGiveWhatLayersGive) {
  const auto eager = make_engine(options());
  const auto captured = make_engine(options());
  BackendSwap backend(*captured);
  SequenceFeeder eager_feeder(*eager);
  SequenceFeeder captured_feeder(*captured);
  Family of_eager = make_family(eager_feeder);
  Family of_captured = make_family(captured_feeder);
  for (const std::int32_t tokens : {1, 3, 4, 40, 1}) {
    const LayerRows x = random_rows(static_cast<std::uint64_t>(tokens), 3, tokens, golden_.hidden());
    const Step plain = prepare(*eager, of_eager.child.id, tokens);
    const Step whole = prepare(*captured, of_captured.child.id, tokens, true);
    EXPECT_EQ(run_layers(*eager, plain, x), run_whole(*captured, *backend, whole, x));
    ASSERT_OK(eager->commit(plain));
    ASSERT_OK(captured->commit(whole));
  }
  EXPECT_EQ(eager_feeder.digests(of_eager.child), captured_feeder.digests(of_captured.child));
  EXPECT_EQ(eager_feeder.digests(of_eager.parent), captured_feeder.digests(of_captured.parent));
  EXPECT_EQ(captured->graph_stats().replays, 5);
}

// A capture that fails, by whatever the hook does, leaves the step as it was: run layer by layer or captured
// afterwards, outputs and caches are those of a step that nobody disturbed. The step copies shared blocks and has
// new ones, which a step with captured counts would not.
TEST_F(EngineStepTest, AFailedCaptureLeavesTheStepAsItWas) {
  const auto plain = make_engine(options());
  SequenceFeeder plain_feeder(*plain);
  Family expected = make_family(plain_feeder);
  const LayerRows x = random_rows(5, 3, 40, golden_.hidden());
  const Step undisturbed = prepare(*plain, expected.child.id, 40);
  const LayerRows outputs = run_layers(*plain, undisturbed, x);
  ASSERT_OK(plain->commit(undisturbed));

  for (const bool eagerly : {true, false}) {
    for (int fault = 0; fault < 4; ++fault) {
      SCOPED_TRACE("fault " + std::to_string(fault) + (eagerly ? ", then eagerly" : ", then captured"));
      const auto engine = make_engine(options());
      BackendSwap backend(*engine);
      SequenceFeeder feeder(*engine);
      Family family = make_family(feeder);
      const Step step = prepare(*engine, family.child.id, 40, true);
      const Status failed = engine->step(step, engine->input(), [&](const LayerOutput& output) -> Status {
        if (fault == 0) backend->spoil_capture();
        if (output.layer != LayerId(1)) return {};
        if (fault == 1) return {StatusCode::kNotFound, "expert 7"};
        if (fault == 2) throw std::runtime_error("expert 8");
        if (fault == 3) return {StatusCode::kInternal, "the caller's own"};
        return {};
      });
      EXPECT_FALSE(failed.ok());
      EXPECT_EQ(engine->graph_stats().captures, 0);
      EXPECT_EQ(eagerly ? run_layers(*engine, step, x) : run_whole(*engine, *backend, step, x), outputs);
      ASSERT_OK(engine->commit(step));
      EXPECT_EQ(feeder.digests(family.child), plain_feeder.digests(expected.child));
      EXPECT_EQ(feeder.digests(family.parent), plain_feeder.digests(expected.parent));
    }
  }
}

// A launch or upload that fails for want of memory can be repeated.
TEST_F(EngineStepTest, ShortagesAroundAGraphAreRetried) {
  const auto engine = make_engine(options());
  BackendSwap backend(*engine);
  SequenceFeeder feeder(*engine);
  Family family = make_family(feeder);
  const LayerRows x = random_rows(5, 3, 2, golden_.hidden());
  const Step step = prepare(*engine, family.child.id, 2, true);
  const auto nothing = [](const LayerOutput&) -> Status { return {}; };
  backend->next_upload_step = {StatusCode::kResourceExhausted, "no room for the metadata"};
  EXPECT_TRUE(fails_with(engine->step(step, engine->input(), nothing), StatusCode::kResourceExhausted, {"metadata"}));
  backend->next_launch = {StatusCode::kResourceExhausted, "no room for the graph"};
  EXPECT_TRUE(fails_with(engine->step(step, engine->input(), nothing), StatusCode::kResourceExhausted, {"graph"}));
  EXPECT_TRUE(fails_with(engine->commit(step), StatusCode::kFailedPrecondition, {"has not run"}));
  run_whole(*engine, *backend, step, x);
  EXPECT_OK(engine->commit(step));
}

// Chunk lengths and widths of verification share graphs.
TEST_F(EngineStepTest, LengthsOfABucketShareAGraph) {
  EngineOptions many = options();
  many.limits.max_sequences = 2;
  const auto engine = make_engine(many);
  BackendSwap backend(*engine);
  const auto nothing = [](const LayerOutput&) -> Status { return {}; };
  const auto captures_of = [&](std::initializer_list<std::int32_t> lengths) {
    const std::int64_t before = engine->graph_stats().captures;
    for (const std::int32_t tokens : lengths) {
      const SequenceId sequence = engine->create_sequence().value();
      const Step step = prepare(*engine, sequence, tokens, true);
      EXPECT_OK(engine->step(step, engine->input(), nothing));
      EXPECT_OK(engine->commit(step));
      EXPECT_OK(engine->release(sequence));
    }
    return engine->graph_stats().captures - before;
  };
  EXPECT_EQ(captures_of({97, 98, 99, 103, 110, 112}), 1);
  EXPECT_EQ(captures_of({34, 35, 39, 40}), 1);
  EXPECT_EQ(captures_of({33, 65, 66}), 2) << "shapes of their own";
  EXPECT_EQ(captures_of({97, 40}), 0);
}

// ---- Layers that fail ---------------------------------------------------------------------------

// Before the cache is written a layer may be run again; a later failure leaves only cancel, since the rings no longer
// hold what the layer reads. Neither latches, and the engine goes on as if nothing had been.
TEST_F(EngineStepTest, AFailedLayerHasNotRun) {
  const auto plain = make_engine(options());
  SequenceFeeder plain_feeder(*plain);
  Family expected = make_family(plain_feeder);
  const LayerRows x = random_rows(5, 3, 4, golden_.hidden());
  const Step undisturbed = prepare(*plain, expected.child.id, 4);
  const LayerRows outputs = run_layers(*plain, undisturbed, x);
  ASSERT_OK(plain->commit(undisturbed));

  for (const std::string_view operation :
       {"linear", "normed_linear", "write_kv", "indexer_topk", "attend", "swa_cache_write"}) {
    for (const std::int32_t failing : {0, 1, 2}) {
      for (const bool throws : {false, true}) {
        SCOPED_TRACE(std::string(operation) + " of layer " + std::to_string(failing));
        const auto engine = make_engine(options());
        BackendSwap backend(*engine);
        SequenceFeeder feeder(*engine);
        Family family = make_family(feeder);
        Step step = prepare(*engine, family.child.id, 4);
        LayerRows rows(3, std::vector<Bf16Bits>(outputs[0].size()));
        const auto run = [&](std::size_t i) {
          return engine->forward_layer(step, engine->layers()[i], x[i].data(), rows[i].data());
        };
        for (std::int32_t i = 0; i < failing; ++i) ASSERT_OK(run(static_cast<std::size_t>(i)));
        bool failed = false;
        backend->capturing_ops().fail = [&](std::string_view name) -> Status {
          if (name != operation || failed) return {};
          failed = true;
          if (throws) throw std::bad_alloc();
          return {StatusCode::kResourceExhausted, "no scratch"};
        };
        const Status status = run(static_cast<std::size_t>(failing));
        backend->capturing_ops().fail = nullptr;
        if (!failed) {
          EXPECT_OK(status);
          continue;  // the layer's kind does not do this
        }
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.to_string();
        EXPECT_TRUE(fails_with(engine->commit(step), StatusCode::kFailedPrecondition, {"layer "}));
        const bool repeatable = operation == "linear" || operation == "normed_linear";
        if (!repeatable) {
          const std::string name = "layer " + std::to_string(failing);
          for (const Status& refused : {run(static_cast<std::size_t>(failing)), run(2), engine->commit(step),
                                        engine->step(step, x[0].data(), [](const LayerOutput&) { return Status{}; })}) {
            EXPECT_TRUE(fails_with(refused, StatusCode::kFailedPrecondition, {name, "cancelled"}));
          }
          const auto emptied = engine->cancel(step);
          ASSERT_OK(emptied);
          EXPECT_TRUE(emptied->empty()) << "four tokens are within the draft budget";
          EXPECT_EQ(engine->length(family.child.id).value(), 90);
          step = prepare(*engine, family.child.id, 4);
        }
        for (std::size_t i = 0; i < 3; ++i) {
          if (repeatable && static_cast<std::int32_t>(i) < failing) continue;
          ASSERT_OK(run(i));
        }
        ASSERT_OK(engine->commit(step));
        EXPECT_EQ(rows, outputs);
        EXPECT_EQ(feeder.digests(family.child), plain_feeder.digests(expected.child));
        EXPECT_EQ(feeder.digests(family.parent), plain_feeder.digests(expected.parent));
      }
    }
  }
}

// ---- What latches -------------------------------------------------------------------------------

TEST_F(EngineStepTest, OnlyFaultsAndDefectsLatch) {
  for (const StatusCode code :
       {StatusCode::kInvalidArgument, StatusCode::kBadInput, StatusCode::kNotFound, StatusCode::kUnsupported,
        StatusCode::kResourceExhausted, StatusCode::kFailedPrecondition, StatusCode::kFaulted, StatusCode::kInternal}) {
    SCOPED_TRACE(std::string(status_code_name(code)));
    const auto engine = make_engine(options());
    BackendSwap backend(*engine);
    const SequenceId sequence = engine->create_sequence().value();
    const SequenceId other = engine->create_sequence().value();
    const Step step = prepare(*engine, sequence, 2);
    const LayerRows x = random_rows(5, 1, 2, golden_.hidden());
    std::vector<Bf16Bits> out(x[0].size());
    backend->capturing_ops().fail = [&](std::string_view name) -> Status {
      return name == "attend" ? Status(code, "seven lamps are out") : Status{};
    };
    EXPECT_TRUE(fails_with(engine->forward_layer(step, LayerId(0), x[0].data(), out.data()), code, {"seven lamps"}));
    backend->capturing_ops().fail = nullptr;
    const bool latches = code == StatusCode::kFaulted || code == StatusCode::kInternal;
    if (!latches) {
      EXPECT_OK(engine->cancel(step));
      EXPECT_OK(engine->release(other));
      continue;
    }
    const auto no_hook = [](const LayerOutput&) { return Status{}; };
    for (const Status& later :
         {engine->create_sequence().status(), engine->fork(other).status(), engine->truncate(other, 0),
          engine->release(other), engine->length(other).status(), engine->can_admit(1),
          engine->save_sequence(other).status(), engine->snapshot_bytes(other).status(),
          engine->restore_sequence({}).status(), engine->prepare({}).status(), engine->commit(step),
          engine->cancel(step).status(), engine->forward_layer(step, LayerId(0), x[0].data(), out.data()),
          engine->forward_layer_from_host(step, LayerId(0), x[0].data(), out.data()),
          engine->step(step, x[0].data(), no_hook), engine->synchronize()}) {
      EXPECT_TRUE(fails_with(later, StatusCode::kFaulted, {"seven lamps are out"}));
    }
  }
}

// Tables that are half updated fit neither a commit nor a cancel.
TEST_F(EngineStepTest, AStepThatCannotBeginLatches) {
  const auto engine = make_engine(options());
  BackendSwap backend(*engine);
  const Step step = prepare(*engine, engine->create_sequence().value(), 2);
  const LayerRows x = random_rows(5, 1, 2, golden_.hidden());
  std::vector<Bf16Bits> out(x[0].size());
  backend->capturing_ops().fail = [](std::string_view) -> Status { return {StatusCode::kResourceExhausted, "tables"}; };
  EXPECT_TRUE(
      fails_with(engine->forward_layer(step, LayerId(0), x[0].data(), out.data()), StatusCode::kFaulted, {"tables"}));
  EXPECT_TRUE(fails_with(engine->cancel(step), StatusCode::kFaulted, {"tables"}));
}

// A fork whose rings could not be copied was not made.
TEST_F(EngineStepTest, AForkThatCannotCopyChangesNothing) {
  const auto engine = make_engine(options());
  BackendSwap backend(*engine);
  SequenceFeeder feeder(*engine);
  FedSequence parent = feeder.create(golden_.inputs);
  feeder.feed_to(parent, 90);
  const auto digests = feeder.digests(parent);
  backend->capturing_ops().fail = [](std::string_view) -> Status { return {StatusCode::kResourceExhausted, "rings"}; };
  EXPECT_TRUE(fails_with(engine->fork(parent.id), StatusCode::kResourceExhausted, {"rings"}));
  backend->capturing_ops().fail = nullptr;
  EXPECT_EQ(feeder.digests(parent), digests);
  EXPECT_OK(engine->create_sequence());
  EXPECT_OK(engine->fork(parent.id));
  EXPECT_TRUE(fails_with(engine->create_sequence(), StatusCode::kResourceExhausted, {"max_sequences"}));
}

// ---- What the caller gives ----------------------------------------------------------------------

TEST_F(EngineStepTest, RowsThatTheBackendCannotTakeAreRefusedInOnePlace) {
  const auto engine = make_engine(options());
  BackendSwap backend(*engine);
  backend->alignment = 16;
  const Step step = prepare(*engine, engine->create_sequence().value(), 2);
  const auto rows = static_cast<std::size_t>(2 * golden_.hidden());
  alignas(16) static Bf16Bits x[4096];
  alignas(16) static Bf16Bits out[4096];
  ASSERT_LE(rows + 8, std::size(x));
  const auto refused = [&](const Status& status, const char* name) {
    return fails_with(status, StatusCode::kInvalidArgument, {name});
  };
  for (const std::ptrdiff_t offset : {1, 2, 4, 7}) {
    EXPECT_TRUE(refused(engine->forward_layer(step, LayerId(0), x + offset, out), "x lies"));
    EXPECT_TRUE(refused(engine->forward_layer(step, LayerId(0), x, out + offset), "out lies"));
    EXPECT_TRUE(refused(engine->step(step, x + offset, [](const LayerOutput&) { return Status{}; }), "x lies"));
  }
  EXPECT_TRUE(refused(engine->forward_layer(step, LayerId(0), nullptr, out), "x is null"));
  EXPECT_TRUE(refused(engine->forward_layer(step, LayerId(0), x, nullptr), "out is null"));
  EXPECT_TRUE(refused(engine->step(step, nullptr, [](const LayerOutput&) { return Status{}; }), "x is null"));
  for (const LayerId layer : engine->layers()) ASSERT_OK(engine->forward_layer(step, layer, x + 8, out + 8));
  EXPECT_OK(engine->commit(step));
}

// The bytes that are copied for the host are the engine's count, not the caller's.
TEST_F(EngineStepTest, AlteredStepsAreRefused) {
  const auto engine = make_engine(options());
  BackendSwap backend(*engine);
  backend->own_memory = true;
  const Step step = prepare(*engine, engine->create_sequence().value(), 2);
  const auto rows = static_cast<std::size_t>(2 * golden_.hidden());
  std::vector<Bf16Bits> x(rows);
  std::vector<Bf16Bits> out(rows);
  for (const std::int32_t tokens : {-1, 0, 1, 3, 393, 2147483647}) {
    for (const bool valid : {false, true}) {
      Step altered = step;
      (valid ? altered.valid_tokens : altered.tokens) = tokens;
      for (const Status& status : {engine->forward_layer_from_host(altered, LayerId(0), x.data(), out.data()),
                                   engine->forward_layer(altered, LayerId(0), x.data(), out.data()),
                                   engine->commit(altered), engine->cancel(altered).status(),
                                   engine->step(altered, x.data(), [](const LayerOutput&) { return Status{}; })}) {
        EXPECT_TRUE(fails_with(status, StatusCode::kInvalidArgument, {"prepare gave 2 and 2"}));
      }
    }
  }
  EXPECT_TRUE(fails_with(engine->forward_layer_from_host(step, LayerId(0), nullptr, out.data()),
                         StatusCode::kInvalidArgument, {"x is null"}));
  EXPECT_TRUE(fails_with(engine->forward_layer_from_host(step, LayerId(0), x.data(), nullptr),
                         StatusCode::kInvalidArgument, {"out is null"}));
  EXPECT_EQ(backend->host_bytes_taken, 0);
  for (const LayerId layer : engine->layers()) {
    ASSERT_OK(engine->forward_layer_from_host(step, layer, x.data(), out.data()));
  }
  EXPECT_EQ(backend->host_bytes_taken, static_cast<std::int64_t>(3 * 2 * rows * sizeof(Bf16Bits)));
  EXPECT_OK(engine->commit(step));
}

// Neither hooks nor sinks can change the engine that called them, and what they throw stays inside.
TEST_F(EngineStepTest, HooksAndSinksAreKeptApart) {
  const auto engine = make_engine(options());
  const SequenceId sequence = engine->create_sequence().value();
  const Step step = prepare(*engine, sequence, 2);
  const LayerRows x = random_rows(5, 1, 2, golden_.hidden());
  const StepEntry entry{sequence, 1};
  int refused = 0;
  ASSERT_OK(engine->step(step, x[0].data(), [&](const LayerOutput&) -> Status {
    for (const Status& status : {engine->cancel(step).status(), engine->commit(step), engine->release(sequence),
                                 engine->prepare({&entry, 1}).status(), engine->create_sequence().status()}) {
      refused += fails_with(status, StatusCode::kFailedPrecondition, {"hook"}) ? 1 : 0;
    }
    EXPECT_EQ(engine->length(sequence).value(), 2);
    return {};
  }));
  EXPECT_EQ(refused, 15);
  ASSERT_OK(engine->commit(step));
  EXPECT_TRUE(fails_with(engine->save_sequence(sequence,
                                               [&](std::span<const std::byte>) -> Status {
                                                 EXPECT_TRUE(fails_with(engine->release(sequence),
                                                                        StatusCode::kFailedPrecondition, {"sink"}));
                                                 throw std::runtime_error("disk 4 is full");
                                               }),
                         StatusCode::kInvalidArgument, {"sink", "disk 4 is full"}));
  const Step next = prepare(*engine, sequence, 2);
  EXPECT_TRUE(fails_with(engine->step(next, x[0].data(), [](const LayerOutput&) -> Status { throw 7; }),
                         StatusCode::kInvalidArgument, {"hook of layer 0"}));
  EXPECT_TRUE(fails_with(engine->step(next, x[0].data(), [](const LayerOutput&) -> Status { throw std::bad_alloc(); }),
                         StatusCode::kFailedPrecondition, {"already ran"}));
  EXPECT_OK(engine->cancel(next));
  EXPECT_OK(engine->release(sequence));
}

// Every verb, from a hook, a sink and a listener of events.
TEST_F(EngineStepTest, NothingChangesAnEngineFromWithin) {
  EngineOptions with_prefixes = options();
  with_prefixes.limits.boundary_states = 4;
  std::function<void()> listener;
  with_prefixes.prefix_cache.on_event = [&](const PrefixEvent&) {
    if (listener) listener();
  };
  const auto engine = make_engine(with_prefixes);
  const std::vector<std::int32_t> ids(300, 7);
  const SequenceId sequence = engine->create_sequence(ids, {}).value().sequence;
  const LayerRows x = random_rows(5, 1, 256, golden_.hidden());
  std::vector<Bf16Bits> out(x[0].size());
  const StepEntry entry{sequence, 256, ids.data()};
  const Step step = engine->prepare({&entry, 1}).value();
  const auto snapshot = std::vector<std::byte>(200);
  int calls = 0;
  const auto try_everything = [&] {
    ++calls;
    Engine& e = *engine;
    const LayerId layer = e.layers()[0];
    const LayerHook hook = [](const LayerOutput&) { return Status{}; };
    const SnapshotSink sink = [](std::span<const std::byte>) { return Status{}; };
    for (const Status& status : {e.create_sequence().status(),
                                 e.create_sequence(ids, {}).status(),
                                 e.fork(sequence).status(),
                                 e.branch(sequence, 128).status(),
                                 e.truncate(sequence, 0),
                                 e.release(sequence),
                                 e.pin_prefix(ids).status(),
                                 e.unpin_prefix(ids).status(),
                                 e.evict_prefix(ids).status(),
                                 e.clear_prefixes(),
                                 e.save_sequence(sequence).status(),
                                 e.save_sequence(sequence, sink),
                                 e.restore_sequence(snapshot).status(),
                                 e.prepare({&entry, 1}).status(),
                                 e.forward_layer(step, layer, x[0].data(), out.data()),
                                 e.forward_layer_from_host(step, layer, x[0].data(), out.data()),
                                 e.step(step, x[0].data(), hook),
                                 e.commit(step),
                                 e.cancel(step).status(),
                                 e.output_check(step).status()}) {
      EXPECT_TRUE(fails_with(status, StatusCode::kFailedPrecondition, {"hook"}));
    }
    EXPECT_EQ(e.length(sequence).value(), 256);
  };
  ASSERT_OK(engine->step(step, x[0].data(), [&](const LayerOutput&) -> Status {
    try_everything();
    return {};
  }));
  EXPECT_EQ(calls, 3);
  listener = try_everything;
  ASSERT_OK(engine->commit(step));
  EXPECT_GT(calls, 3) << "units were stored and nobody was told";
  listener = nullptr;
  calls = 0;
  ASSERT_OK(engine->save_sequence(sequence, [&](std::span<const std::byte>) -> Status {
    if (calls < 2) try_everything();
    return {};
  }));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(engine->length(sequence).value(), 256);
}

// Waiting would end the capture, and what a backend says of that looks like a fault.
TEST_F(EngineStepTest, NobodyWaitsWhileAStepIsRecorded) {
  const auto engine = make_engine(options());
  BackendSwap backend(*engine);
  const SequenceId sequence = engine->create_sequence().value();
  const Step step = prepare(*engine, sequence, 1, true);
  ASSERT_OK(engine->step(step, engine->input(), [&](const LayerOutput&) -> Status {
    EXPECT_TRUE(fails_with(engine->synchronize(), StatusCode::kFailedPrecondition, {"recorded"}));
    return {};
  }));
  EXPECT_OK(engine->synchronize());
  EXPECT_OK(engine->commit(step));
}

}  // namespace
}  // namespace dsv4rt::test
