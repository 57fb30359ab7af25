// What the C interface refuses, and that nothing but a status comes out of it.
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/check.h"
#include "capi/c_api_handle.h"
#include "tools/lib/engine_inspector.h"
#include "unit/capi/c_api_test.h"

namespace dsv4rt {
namespace {

// Creates with the tiny checkpoint's options after `change`; the text of the failure.
class CApiErrorTest : public CApiTest {
 protected:
  static std::string refused(const std::function<void(dsv4rt_engine_options&)>& change, dsv4rt_status expected) {
    const std::string path = checkpoint();
    dsv4rt_engine_options given = options(path.c_str());
    change(given);
    auto* engine = reinterpret_cast<dsv4rt_engine*>(&given);  // must be overwritten
    char message[512] = "?";
    EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), expected) << message;
    EXPECT_EQ(engine, nullptr);
    return message;
  }
};

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' does not name '" << part << "'";
}

// No memory holds a text of this length: the text of a failure must not become a failure.
TEST(CApiErrorText, ATextThatCannotBeKeptIsReplaced) {
  c_api::ErrorText error;
  error.set("kept");
  EXPECT_STREQ(error.c_str(), "kept");
  error.set({error.c_str(), std::string().max_size() + 1});
  EXPECT_STREQ(error.c_str(), "there is no memory left for the text of this failure");
  error.set("kept again");
  EXPECT_STREQ(error.c_str(), "kept again");
}

TEST_F(CApiErrorTest, CreateNamesWhatIsWrong) {
  using Options = dsv4rt_engine_options;
  expect_in(refused([](Options& o) { o.struct_size = 0; }, DSV4RT_INVALID_ARGUMENT), "struct_size");
  expect_in(refused([](Options& o) { o.struct_size -= 1; }, DSV4RT_INVALID_ARGUMENT), "struct_size");
  expect_in(refused([](Options& o) { o.struct_size = SIZE_MAX; }, DSV4RT_INVALID_ARGUMENT), "struct_size");
  expect_in(refused([](Options& o) { o.checkpoint = nullptr; }, DSV4RT_INVALID_ARGUMENT), "checkpoint");
  expect_in(refused([](Options& o) { o.checkpoint = "no-such-folder"; }, DSV4RT_NOT_FOUND), "no-such-folder");
  expect_in(refused([](Options& o) { o.profile = "other"; }, DSV4RT_INVALID_ARGUMENT), "other");
  expect_in(refused([](Options& o) { o.backend = "tpu"; }, DSV4RT_INVALID_ARGUMENT), "tpu");
  expect_in(refused([](Options& o) { o.row_format = "fp7"; }, DSV4RT_INVALID_ARGUMENT), "fp7");
  expect_in(refused([](Options& o) { o.index_format = "fp7"; }, DSV4RT_INVALID_ARGUMENT), "fp7");
  expect_in(refused([](Options& o) { o.linear_precision = "fp7"; }, DSV4RT_INVALID_ARGUMENT), "fp7");
  expect_in(refused([](Options& o) { o.first_layer = 4; }, DSV4RT_INVALID_ARGUMENT), "first_layer");
  expect_in(refused([](Options& o) { o.max_context_tokens = 0; }, DSV4RT_INVALID_ARGUMENT), "max_context_tokens");
  expect_in(refused([](Options& o) { o.nondeterministic = 1; }, DSV4RT_UNSUPPORTED),
            "nondeterministic: 1; accepted: 0");
  expect_in(refused([](Options& o) { o.memory_limit_bytes = 1; }, DSV4RT_RESOURCE_EXHAUSTED), "SWA_KV");
}

TEST_F(CApiErrorTest, CreateCutsTheTextToTheBuffer) {
  const dsv4rt_engine_options given = options("no-such-folder");
  dsv4rt_engine* engine = nullptr;
  char message[9] = "????????";
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, 8), DSV4RT_NOT_FOUND);
  EXPECT_EQ(std::string(message).size(), 7U);
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, 1), DSV4RT_NOT_FOUND);
  EXPECT_STREQ(message, "");
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, nullptr, 0), DSV4RT_NOT_FOUND);
  EXPECT_EQ(dsv4rt_engine_create(&given, &engine, nullptr, 8), DSV4RT_INVALID_ARGUMENT);
  char full[128] = "";
  EXPECT_EQ(dsv4rt_engine_create(&given, nullptr, full, sizeof(full)), DSV4RT_INVALID_ARGUMENT);
  expect_in(full, "engine");
  EXPECT_EQ(dsv4rt_engine_create(nullptr, &engine, full, sizeof(full)), DSV4RT_INVALID_ARGUMENT);
  expect_in(full, "options");
}

TEST_F(CApiErrorTest, OptionsInitRefusesASizeThatNoVersionHas) {
  dsv4rt_engine_options options;
  EXPECT_EQ(dsv4rt_engine_options_init(nullptr, sizeof(options)), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_options_init(&options, 0), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_options_init(&options, sizeof(options) - 1), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_options_init(&options, SIZE_MAX), DSV4RT_INVALID_ARGUMENT);
}

TEST_F(CApiErrorTest, NullEngineIsRefusedEverywhere) {
  EXPECT_EQ(dsv4rt_engine_destroy(nullptr), DSV4RT_OK);
  EXPECT_STREQ(dsv4rt_engine_last_error(nullptr), "");
  std::int64_t number = 0;
  std::size_t count = 0;
  dsv4rt_memory memory{};
  dsv4rt_memory_region region{};
  dsv4rt_sequence sequence{};
  const dsv4rt_step_entry entry{};
  dsv4rt_step step{};
  dsv4rt_bf16 x = 0;
  dsv4rt_bf16 out = 0;
  std::int32_t layer = 0;
  const auto sink = [](void*, const void*, std::size_t) -> dsv4rt_status { return DSV4RT_OK; };
  const auto source = [](void*, void*, std::size_t, std::size_t*) -> dsv4rt_status { return DSV4RT_OK; };
  dsv4rt_engine_options options{};
  dsv4rt_engine* engine = nullptr;
  for (const dsv4rt_status status : {dsv4rt_engine_hidden_size(nullptr, &number),
                                     dsv4rt_engine_layers(nullptr, nullptr, 0, &count),
                                     dsv4rt_engine_memory(nullptr, &memory),
                                     dsv4rt_engine_memory_region(nullptr, 0, &region),
                                     dsv4rt_engine_can_admit(nullptr, 1),
                                     dsv4rt_sequence_create(nullptr, 0, &sequence),
                                     dsv4rt_sequence_fork(nullptr, sequence, 0, &sequence),
                                     dsv4rt_sequence_truncate(nullptr, sequence, 0),
                                     dsv4rt_sequence_release(nullptr, sequence),
                                     dsv4rt_sequence_length(nullptr, sequence, &number),
                                     dsv4rt_step_prepare(nullptr, &entry, 1, nullptr, &step),
                                     dsv4rt_step_forward_layer(nullptr, &step, 0, &x, &out),
                                     dsv4rt_step_run(nullptr, &step, &x, zero_hook, nullptr),
                                     dsv4rt_step_commit(nullptr, &step, nullptr, 0),
                                     dsv4rt_step_commit_from_device(nullptr, &step, &layer, 1),
                                     dsv4rt_step_accepted(nullptr, &step, &layer, &layer, 1, &count),
                                     dsv4rt_engine_settle(nullptr),
                                     dsv4rt_step_cancel(nullptr, &step, &sequence, 1, &count),
                                     dsv4rt_step_output_check(nullptr, &step, &layer, &layer, 1, &count),
                                     dsv4rt_engine_non_finite_entries(nullptr, &number),
                                     dsv4rt_sequence_snapshot_bytes(nullptr, sequence, nullptr, &number),
                                     dsv4rt_sequence_save(nullptr, sequence, nullptr, sink, nullptr),
                                     dsv4rt_sequence_restore(nullptr, &x, 1, 0, nullptr, &sequence),
                                     dsv4rt_engine_create_sharing(nullptr, &options, &engine, nullptr, 0),
                                     dsv4rt_sequence_restore_from(nullptr, source, nullptr, 0, nullptr, &sequence)}) {
    EXPECT_EQ(status, DSV4RT_INVALID_ARGUMENT);
  }
}

TEST_F(CApiErrorTest, NullArgumentsAreNamed) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  const dsv4rt_step_entry entry{sequence, 1};
  const dsv4rt_step step = prepare(engine, sequence, 1);
  std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(hidden_));
  dsv4rt_sequence emptied{};
  dsv4rt_step other{};
  std::size_t count = 0;
  std::int32_t layer = 0;
  const auto named = [&](dsv4rt_status status, const char* argument) {
    EXPECT_EQ(status, DSV4RT_INVALID_ARGUMENT) << argument;
    expect_error_names(engine, std::string(argument) + " must not be null");
  };
  named(dsv4rt_engine_hidden_size(engine, nullptr), "hidden_size");
  named(dsv4rt_engine_layers(engine, nullptr, 0, nullptr), "count");
  named(dsv4rt_engine_layers(engine, nullptr, 4, &count), "layers");
  named(dsv4rt_engine_layers(engine, &layer, 1, nullptr), "count");
  named(dsv4rt_engine_memory(engine, nullptr), "memory");
  named(dsv4rt_engine_memory_region(engine, 0, nullptr), "region");
  named(dsv4rt_sequence_create(engine, 0, nullptr), "sequence");
  named(dsv4rt_sequence_fork(engine, sequence, 0, nullptr), "child");
  named(dsv4rt_sequence_length(engine, sequence, nullptr), "length");
  named(dsv4rt_step_prepare(engine, nullptr, 1, nullptr, &other), "entries");
  named(dsv4rt_step_prepare(engine, &entry, 1, nullptr, nullptr), "step");
  named(dsv4rt_step_forward_layer(engine, nullptr, 0, x.data(), x.data()), "step");
  named(dsv4rt_step_forward_layer(engine, &step, 0, nullptr, x.data()), "x");
  named(dsv4rt_step_forward_layer(engine, &step, 0, x.data(), nullptr), "out");
  named(dsv4rt_step_run(engine, nullptr, x.data(), zero_hook, nullptr), "step");
  named(dsv4rt_step_run(engine, &step, nullptr, zero_hook, nullptr), "x");
  named(dsv4rt_step_run(engine, &step, x.data(), nullptr, nullptr), "hook");
  named(dsv4rt_step_commit(engine, nullptr, nullptr, 0), "step");
  named(dsv4rt_step_commit(engine, &step, nullptr, 1), "accepted");
  named(dsv4rt_step_commit_from_device(engine, nullptr, &layer, 1), "step");
  named(dsv4rt_step_commit_from_device(engine, &step, nullptr, 1), "accepted");
  named(dsv4rt_step_accepted(engine, nullptr, &layer, &layer, 1, &count), "step");
  named(dsv4rt_step_accepted(engine, &step, nullptr, &layer, 1, &count), "known");
  named(dsv4rt_step_accepted(engine, &step, &layer, nullptr, 1, &count), "accepted");
  named(dsv4rt_step_accepted(engine, &step, &layer, &layer, 1, nullptr), "count");
  named(dsv4rt_step_cancel(engine, nullptr, &emptied, 1, &count), "step");
  named(dsv4rt_step_cancel(engine, &step, nullptr, 1, &count), "emptied");
  named(dsv4rt_step_cancel(engine, &step, &emptied, 1, nullptr), "count");
  named(dsv4rt_step_output_check(engine, nullptr, &layer, &layer, 1, &count), "step");
  named(dsv4rt_step_output_check(engine, &step, nullptr, &layer, 1, &count), "known");
  named(dsv4rt_step_output_check(engine, &step, &layer, nullptr, 1, &count), "entries");
  named(dsv4rt_step_output_check(engine, &step, &layer, &layer, 1, nullptr), "count");
  named(dsv4rt_engine_non_finite_entries(engine, nullptr), "entries");
  named(dsv4rt_sequence_snapshot_bytes(engine, sequence, nullptr, nullptr), "bytes");
  named(dsv4rt_sequence_save(engine, sequence, nullptr, nullptr, nullptr), "sink");
  named(dsv4rt_sequence_restore(engine, nullptr, 1, 0, nullptr, &emptied), "snapshot");
  named(dsv4rt_sequence_restore(engine, x.data(), 1, 0, nullptr, nullptr), "sequence");
  named(dsv4rt_sequence_restore_from(engine, nullptr, nullptr, 0, nullptr, &emptied), "source");
  const auto source = [](void*, void*, std::size_t, std::size_t*) -> dsv4rt_status { return DSV4RT_OK; };
  named(dsv4rt_sequence_restore_from(engine, source, nullptr, 0, nullptr, nullptr), "sequence");
  EXPECT_EQ(run(engine, step), DSV4RT_OK) << "a refused call changed the step";
}

TEST_F(CApiErrorTest, StaleSequencesAreRefused) {
  const EngineHandle handle = open();
  const dsv4rt_sequence released = new_sequence(handle.get());
  ASSERT_EQ(dsv4rt_sequence_release(handle.get(), released), DSV4RT_OK);
  const dsv4rt_sequence reused = new_sequence(handle.get());
  ASSERT_EQ(reused.index, released.index);
  for (const dsv4rt_sequence stale : {released, dsv4rt_sequence{0, 0}}) {
    std::int64_t tokens = 77;
    dsv4rt_sequence child{5, 5};
    const dsv4rt_step_entry entry{stale, 1};
    dsv4rt_step step{9, 9, 9};
    EXPECT_EQ(dsv4rt_sequence_length(handle.get(), stale, &tokens), DSV4RT_STALE_HANDLE);
    EXPECT_EQ(tokens, 77);
    EXPECT_EQ(dsv4rt_sequence_fork(handle.get(), stale, 0, &child), DSV4RT_STALE_HANDLE);
    EXPECT_EQ(child.index, 5U);
    EXPECT_EQ(dsv4rt_sequence_truncate(handle.get(), stale, 0), DSV4RT_STALE_HANDLE);
    EXPECT_EQ(dsv4rt_sequence_release(handle.get(), stale), DSV4RT_STALE_HANDLE);
    EXPECT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, nullptr, &step), DSV4RT_STALE_HANDLE);
    EXPECT_EQ(step.serial, 9U);
  }
  EXPECT_EQ(length(handle.get(), reused), 0);
}

TEST_F(CApiErrorTest, FullEngineRefusesSequencesAndTokens) {
  const EngineHandle handle = open();
  for (std::int32_t i = 0; i < kMaxSequences; ++i) {
    EXPECT_EQ(dsv4rt_engine_can_admit(handle.get(), 10), DSV4RT_OK);
    new_sequence(handle.get());
  }
  EXPECT_EQ(dsv4rt_engine_can_admit(handle.get(), 10), DSV4RT_RESOURCE_EXHAUSTED);
  dsv4rt_sequence sequence{};
  EXPECT_EQ(dsv4rt_sequence_create(handle.get(), 0, &sequence), DSV4RT_RESOURCE_EXHAUSTED);
  EXPECT_NE(std::string(dsv4rt_engine_last_error(handle.get())), "");
}

TEST_F(CApiErrorTest, ExhaustedPoolNamesItsRole) {
  const std::string path = checkpoint();
  dsv4rt_engine_options given = options(path.c_str());
  given.pool_tokens = kMaxContextTokens;  // three sequences share what one may need
  given.csa_rows_per_block = 16;          // small blocks: little is set aside for partly filled ones
  dsv4rt_engine* engine = nullptr;
  ASSERT_EQ(dsv4rt_engine_create(&given, &engine, nullptr, 0), DSV4RT_OK);
  const EngineHandle handle(engine);
  dsv4rt_sequence sequence{};
  ASSERT_EQ(dsv4rt_sequence_create(engine, kMaxContextTokens, &sequence), DSV4RT_OK)
      << dsv4rt_engine_last_error(engine);
  EXPECT_EQ(dsv4rt_engine_can_admit(engine, kMaxContextTokens), DSV4RT_RESOURCE_EXHAUSTED);
  expect_error_names(engine, "_K");  // CSA_KV, HCA_KV or INDEX_K
  EXPECT_EQ(dsv4rt_sequence_release(engine, sequence), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_engine_can_admit(engine, kMaxContextTokens), DSV4RT_OK);
}

TEST_F(CApiErrorTest, StepsOutOfOrderAreRefused) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(hidden_));
  std::vector<dsv4rt_bf16> out(x.size());
  dsv4rt_step none{};
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &none, 0, x.data(), out.data()), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_commit(engine, &none, nullptr, 0), DSV4RT_FAILED_PRECONDITION);

  const dsv4rt_step_entry too_long{sequence, kMaxStepTokens + 1};
  EXPECT_NE(dsv4rt_step_prepare(engine, &too_long, 1, nullptr, &none), DSV4RT_OK);
  const std::vector<dsv4rt_step_entry> too_many(kMaxSequences + 1, {sequence, 1});
  EXPECT_EQ(dsv4rt_step_prepare(engine, too_many.data(), too_many.size(), nullptr, &none), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_prepare(engine, too_many.data(), 2, nullptr, &none), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_prepare(engine, too_many.data(), 0, nullptr, &none), DSV4RT_INVALID_ARGUMENT);

  const dsv4rt_step step = prepare(engine, sequence, 1);
  const dsv4rt_step_entry entry{sequence, 1};
  EXPECT_EQ(dsv4rt_step_prepare(engine, &entry, 1, nullptr, &none), DSV4RT_FAILED_PRECONDITION);
  dsv4rt_step wrong = step;
  ++wrong.serial;
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &wrong, 0, x.data(), out.data()), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_run(engine, &wrong, x.data(), zero_hook, nullptr), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_commit(engine, &wrong, nullptr, 0), DSV4RT_FAILED_PRECONDITION);

  for (const std::int32_t layer : {-1, 4, INT32_MIN, INT32_MAX}) {
    EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, layer, x.data(), out.data()), DSV4RT_INVALID_ARGUMENT);
    expect_error_names(engine, "layer " + std::to_string(layer));
  }
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, 1, x.data(), x.data()), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, 1, x.data(), out.data()), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, 1, x.data(), out.data()), DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_FAILED_PRECONDITION);
  expect_error_names(engine, "layer 0 has not run");
  for (const std::int32_t layer : {3, 0, 2}) {
    EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, layer, x.data(), out.data()), DSV4RT_OK);
  }
  const std::int32_t accepted[] = {2, 1};
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, accepted, 1), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, accepted, 2), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK);
  EXPECT_EQ(length(engine, sequence), 1);
}

// ---- Hooks ----

struct FailingHook {
  dsv4rt_engine* engine;
  std::int32_t at_layer;
  std::function<dsv4rt_status()> action;

  static dsv4rt_status call(void* self, std::int32_t layer, const dsv4rt_bf16*, dsv4rt_bf16*) {
    const auto& hook = *static_cast<FailingHook*>(self);
    return layer == hook.at_layer ? hook.action() : DSV4RT_OK;
  }
};

TEST_F(CApiErrorTest, HookFailureEndsTheRunAndTheEngineGoesOn) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  append(engine, sequence, 10);
  const std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(hidden_));
  const std::vector<std::pair<std::function<dsv4rt_status()>, dsv4rt_status>> cases = {
      {[] { return DSV4RT_BAD_INPUT; }, DSV4RT_BAD_INPUT},
      {[] { return DSV4RT_INTERNAL; }, DSV4RT_INTERNAL},
      {[] { return 77; }, DSV4RT_INVALID_ARGUMENT},
      {[] { return -1; }, DSV4RT_INVALID_ARGUMENT},
      {[]() -> dsv4rt_status { throw std::runtime_error("expert 7 is missing"); }, DSV4RT_INVALID_ARGUMENT},
      {[]() -> dsv4rt_status { throw 7; }, DSV4RT_INVALID_ARGUMENT},
  };
  for (const auto& [action, expected] : cases) {
    const dsv4rt_step step = prepare(engine, sequence, 1);
    FailingHook hook{engine, 2, action};
    EXPECT_EQ(dsv4rt_step_run(engine, &step, x.data(), FailingHook::call, &hook), expected);
    expect_error_names(engine, "hook of layer 2");
    dsv4rt_sequence emptied{};
    std::size_t count = 0;
    EXPECT_EQ(dsv4rt_step_cancel(engine, &step, &emptied, 1, &count), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    EXPECT_EQ(count, 0U);
    EXPECT_EQ(length(engine, sequence), 10);
  }
  append(engine, sequence, 1);
}

TEST_F(CApiErrorTest, HookMayAskButNotChange) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  const std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(hidden_));
  std::vector<dsv4rt_bf16> out(x.size());
  const dsv4rt_step step = prepare(engine, sequence, 1);
  int asked = 0;
  FailingHook hook{engine, 0, [&] {
                     ++asked;
                     dsv4rt_sequence other{};
                     std::size_t count = 0;
                     for (const dsv4rt_status status :
                          {dsv4rt_engine_destroy(engine), dsv4rt_sequence_create(engine, 0, &other),
                           dsv4rt_sequence_release(engine, sequence), dsv4rt_step_commit(engine, &step, nullptr, 0),
                           dsv4rt_step_cancel(engine, &step, &other, 1, &count),
                           dsv4rt_step_forward_layer(engine, &step, 1, x.data(), out.data()),
                           dsv4rt_step_run(engine, &step, x.data(), FailingHook::call, nullptr)}) {
                       EXPECT_EQ(status, DSV4RT_FAILED_PRECONDITION);
                     }
                     std::int64_t hidden = 0;
                     EXPECT_EQ(dsv4rt_engine_hidden_size(engine, &hidden), DSV4RT_OK);
                     EXPECT_EQ(length(engine, sequence), 1);
                     return DSV4RT_OK;
                   }};
  EXPECT_EQ(dsv4rt_step_run(engine, &step, x.data(), FailingHook::call, &hook), DSV4RT_OK);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK);
}

// ---- The wall ----

TEST_F(CApiErrorTest, ExceptionsBecomeStatuses) {
  const auto code = [](void (*body)(), const std::string& part) {
    c_api::ErrorText error;
    const dsv4rt_status status = c_api::run_guarded(error, [&] {
      body();
      return Status{};
    });
    expect_in(error.c_str(), part);
    return status;
  };
  EXPECT_EQ(code([] { DSV4RT_CHECK(1 + 1 == 3); }, "1 + 1 == 3"), DSV4RT_INTERNAL);
  EXPECT_EQ(code([] { throw std::bad_alloc(); }, "memory"), DSV4RT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(code([] { throw std::out_of_range("index 9"); }, "index 9"), DSV4RT_INTERNAL);
  EXPECT_EQ(code([] { throw 9; }, "unknown type"), DSV4RT_INTERNAL);
  EXPECT_EQ(code([] {}, ""), DSV4RT_OK);
}

// What runs out of memory has changed nothing, and the engine goes on; a defect latches it, and every later call
// tells what the defect was. allocation_failure_test looks at real shortages inside the engine.
TEST_F(CApiErrorTest, DefectLatchesTheEngineButAShortageDoesNot) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  EXPECT_EQ(c_api::call(engine, c_api::Use::kChange, [](dsv4rt_engine&) -> Status { throw std::bad_alloc(); }),
            DSV4RT_RESOURCE_EXHAUSTED);
  append(engine, sequence, 1);
  EXPECT_EQ(c_api::call(engine, c_api::Use::kChange,
                        [](dsv4rt_engine&) -> Status { throw CheckFailure("free + live != total"); }),
            DSV4RT_INTERNAL);
  expect_error_names(engine, "free + live != total");
  dsv4rt_sequence other{};
  std::int64_t number = 0;
  EXPECT_EQ(dsv4rt_sequence_create(engine, 0, &other), DSV4RT_FAULTED);
  expect_error_names(engine, "free + live != total");
  EXPECT_EQ(dsv4rt_sequence_create(engine, 0, nullptr), DSV4RT_FAULTED);
  expect_error_names(engine, "free + live != total");
  EXPECT_EQ(dsv4rt_sequence_length(engine, sequence, &number), DSV4RT_FAULTED);
  EXPECT_EQ(dsv4rt_engine_can_admit(engine, 1), DSV4RT_FAULTED);
  EXPECT_EQ(dsv4rt_engine_hidden_size(engine, &number), DSV4RT_OK);
}

TEST_F(CApiErrorTest, DefectsThatAQuestionMeetsLatchToo) {
  const EngineHandle handle = open();
  EXPECT_EQ(c_api::call(handle.get(), c_api::Use::kQuery,
                        [](dsv4rt_engine&) -> Status { throw CheckFailure("a slot is listed twice"); }),
            DSV4RT_INTERNAL);
  dsv4rt_sequence other{};
  EXPECT_EQ(dsv4rt_sequence_create(handle.get(), 0, &other), DSV4RT_FAULTED);
  expect_error_names(handle.get(), "listed twice");
}

// The process goes on when the cache turns out to be overwritten at the end.
TEST_F(CApiErrorTest, DestructionReportsAnOverwrittenCache) {
  for (const bool damaged : {false, true}) {
    auto handle = std::make_unique<dsv4rt_engine>();
    EngineOptions options;
    options.checkpoint = checkpoint();
    options.limits = {.max_sequences = 1, .max_context_tokens = 64, .max_step_tokens = 64, .pool_tokens = 0};
    options.poison_freed_blocks = true;
    ASSERT_TRUE(c_api::open(*handle, options).ok());
    if (damaged) EngineInspector(*handle->engine).cache_memory().regions()[0].data[-1] = std::byte{1};
    EXPECT_EQ(dsv4rt_engine_destroy(handle.release()), damaged ? DSV4RT_INTERNAL : DSV4RT_OK);
  }
}

// A step that the caller altered, or rows that the backend cannot take, are refused and change nothing.
TEST_F(CApiErrorTest, AlteredStepsAndMisplacedRowsAreRefused) {
  const EngineHandle handle = open();
  dsv4rt_engine* engine = handle.get();
  const dsv4rt_sequence sequence = new_sequence(engine);
  const dsv4rt_step step = prepare(engine, sequence, 3);
  std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(4 * hidden_));
  std::vector<dsv4rt_bf16> out(x.size());
  for (const std::int32_t change : {-3, 1, 1000000}) {
    dsv4rt_step altered = step;
    altered.tokens += change;
    EXPECT_EQ(dsv4rt_step_forward_layer(engine, &altered, 0, x.data(), out.data()), DSV4RT_INVALID_ARGUMENT);
    expect_error_names(engine, "tokens = " + std::to_string(altered.tokens));
    EXPECT_EQ(dsv4rt_step_run(engine, &altered, x.data(), zero_hook, &altered.tokens), DSV4RT_INVALID_ARGUMENT);
    EXPECT_EQ(dsv4rt_step_commit(engine, &altered, nullptr, 0), DSV4RT_INVALID_ARGUMENT);
    altered = step;
    altered.valid_tokens += change;
    EXPECT_EQ(dsv4rt_step_forward_layer(engine, &altered, 0, x.data(), out.data()), DSV4RT_INVALID_ARGUMENT);
  }
  const auto* odd = reinterpret_cast<const dsv4rt_bf16*>(reinterpret_cast<const char*>(x.data()) + 1);
  EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, 0, odd, out.data()), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine, "x lies 1 bytes past a multiple of 2");
  EXPECT_EQ(dsv4rt_step_run(engine, &step, odd, zero_hook, nullptr), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(run(engine, step), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
  EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK);
}

}  // namespace
}  // namespace dsv4rt
