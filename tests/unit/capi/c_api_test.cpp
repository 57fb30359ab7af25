// The C interface computes what the C++ engine computes, and its calls do what c_api.h says.
#include "unit/capi/c_api_test.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "capi/c_api_structs.h"
#include "dsv4rt/version.h"

extern "C" int dsv4rt_c11_decode(const char* checkpoint, char* text, size_t text_bytes);

namespace dsv4rt {
namespace {

// Outputs of every layer of every step, in order.
using Outputs = std::vector<std::vector<Bf16Bits>>;

// Tokens of sequence A and of sequence B in each step: a prefill past the window, decodes across a
// block of 4, a chunk, a draft of 4 of which one is kept.
struct StepShape {
  std::int32_t tokens_a;
  std::int32_t tokens_b;
  std::int32_t keep_a;
};
constexpr StepShape kSteps[] = {{130, 3, 130}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {4, 1, 1},
                                {1, 20, 1},    {1, 1, 1}, {1, 1, 1}, {3, 1, 3}, {1, 1, 1}};

struct HookContext {
  int step;
  std::int64_t tokens;
  std::int64_t hidden;
  Outputs* outputs;

  void take(std::int32_t layer, const Bf16Bits* output, Bf16Bits* next_input) const {
    outputs->emplace_back(output, output + tokens * hidden);
    if (next_input == nullptr) return;
    const auto rows = input_rows(step, layer + 1, tokens, hidden);
    std::copy(rows.begin(), rows.end(), next_input);
  }
};

Outputs outputs_of_engine(Engine& engine, std::int64_t hidden) {
  Outputs outputs;
  const auto a = engine.create_sequence();
  const auto b = engine.create_sequence();
  EXPECT_TRUE(a.ok() && b.ok());
  int number = 0;
  for (const StepShape& shape : kSteps) {
    const StepEntry entries[] = {{*a, shape.tokens_a}, {*b, shape.tokens_b}};
    const auto step = engine.prepare(entries);
    if (!step.ok()) {
      ADD_FAILURE() << step.status().to_string();
      return outputs;
    }
    const HookContext context{number, step->tokens, hidden, &outputs};
    const auto x = input_rows(number, 0, step->tokens, hidden);
    const Status ran = engine.step(*step, x.data(), [&](const LayerOutput& layer) {
      context.take(layer.layer.value, layer.output, layer.next_input);
      return Status{};
    });
    EXPECT_TRUE(ran.ok()) << ran.to_string();
    const std::int32_t accepted[] = {shape.keep_a, shape.tokens_b};
    const Status committed = engine.commit(*step, accepted);
    EXPECT_TRUE(committed.ok()) << committed.to_string();
    ++number;
  }
  return outputs;
}

dsv4rt_status take_output(void* context, std::int32_t layer, const dsv4rt_bf16* output, dsv4rt_bf16* next_input) {
  static_cast<const HookContext*>(context)->take(layer, output, next_input);
  return DSV4RT_OK;
}

// Even steps layer by layer, odd ones with the hook.
void run_step(dsv4rt_engine* engine, const dsv4rt_step& step, HookContext context) {
  const auto x = input_rows(context.step, 0, step.tokens, context.hidden);
  if (context.step % 2 == 1) {
    EXPECT_EQ(dsv4rt_step_run(engine, &step, x.data(), take_output, &context), DSV4RT_OK)
        << dsv4rt_engine_last_error(engine);
    return;
  }
  std::int32_t layers[4];
  std::size_t count = 0;
  ASSERT_EQ(dsv4rt_engine_layers(engine, layers, 4, &count), DSV4RT_OK);
  ASSERT_EQ(count, 4U);
  for (const std::int32_t layer : layers) {
    const auto rows = input_rows(context.step, layer, step.tokens, context.hidden);
    std::vector<Bf16Bits> out(rows.size());
    EXPECT_EQ(dsv4rt_step_forward_layer(engine, &step, layer, rows.data(), out.data()), DSV4RT_OK)
        << dsv4rt_engine_last_error(engine);
    context.outputs->push_back(std::move(out));
  }
}

TEST_F(CApiTest, GivesTheBytesOfTheEngine) {
  const EngineHandle handle = open();
  const dsv4rt_sequence a = new_sequence(handle.get());
  const dsv4rt_sequence b = new_sequence(handle.get());
  Outputs actual;
  int number = 0;
  for (const StepShape& shape : kSteps) {
    const dsv4rt_step_entry entries[] = {{a, shape.tokens_a}, {b, shape.tokens_b}};
    dsv4rt_step step{};
    ASSERT_EQ(dsv4rt_step_prepare(handle.get(), entries, 2, nullptr, &step), DSV4RT_OK);
    ASSERT_EQ(step.tokens, shape.tokens_a + shape.tokens_b);
    ASSERT_EQ(step.valid_tokens, step.tokens);
    run_step(handle.get(), step, {number, step.tokens, hidden_, &actual});
    const std::int32_t accepted[] = {shape.keep_a, shape.tokens_b};
    ASSERT_EQ(dsv4rt_step_commit(handle.get(), &step, accepted, 2), DSV4RT_OK)
        << dsv4rt_engine_last_error(handle.get());
    ++number;
  }

  EngineOptions options;
  options.checkpoint = checkpoint();
  options.threads = 2;
  options.limits = {
      .max_sequences = kMaxSequences, .max_context_tokens = kMaxContextTokens, .max_step_tokens = kMaxStepTokens};
  options.draft_budget_tokens = kDraftTokens;
  auto engine = Engine::create(options);
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  const Outputs expected = outputs_of_engine(**engine, hidden_);
  ASSERT_EQ(expected.size(), std::size(kSteps) * 4);
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i], expected[i]) << "step " << i / 4 << ", layer " << i % 4;
    EXPECT_TRUE(
        std::any_of(expected[i].begin(), expected[i].end(), [](Bf16Bits bits) { return (bits & 0x7fff) != 0; }));
  }
}

TEST_F(CApiTest, ServesAC11Program) {
  char text[256] = "";
  EXPECT_EQ(dsv4rt_c11_decode(checkpoint().c_str(), text, sizeof(text)), 0) << text;
}

TEST_F(CApiTest, SaysItsVersionAndNamesStatuses) {
  EXPECT_EQ(dsv4rt_version(), build_info().version);
  EXPECT_EQ(dsv4rt_c_api_version(), DSV4RT_C_API_VERSION);
  EXPECT_STREQ(dsv4rt_status_name(DSV4RT_OK), "ok");
  EXPECT_STREQ(dsv4rt_status_name(DSV4RT_STALE_HANDLE), "stale handle");
  EXPECT_STREQ(dsv4rt_status_name(DSV4RT_INTERNAL), "internal");
  EXPECT_STREQ(dsv4rt_status_name(-1), "unknown");
  EXPECT_STREQ(dsv4rt_status_name(DSV4RT_BACKEND_LOST), "backend lost");
  EXPECT_STREQ(dsv4rt_status_name(DSV4RT_BACKEND_LOST + 1), "unknown");
}

TEST_F(CApiTest, DefaultsAreThoseOfTheEngine) {
  dsv4rt_engine_options options;
  ASSERT_EQ(dsv4rt_engine_options_init(&options, sizeof(options)), DSV4RT_OK);
  const EngineOptions defaults;
  EXPECT_EQ(options.struct_size, sizeof(options));
  EXPECT_EQ(options.checkpoint, nullptr);
  EXPECT_EQ(options.profile, defaults.profile);
  EXPECT_EQ(options.backend, defaults.backend);
  EXPECT_EQ(options.row_format, nullptr);
  EXPECT_EQ(options.max_sequences, defaults.limits.max_sequences);
  EXPECT_EQ(options.csa_rows_per_block, defaults.csa_rows_per_block);
  EXPECT_EQ(options.hca_rows_per_block, defaults.hca_rows_per_block);
  EXPECT_EQ(options.memory_limit_bytes, 0);
}

// A caller compiled with a later header, whose options have one more field.
TEST_F(CApiTest, OptionsOfALaterVersionAreAcceptedWhileTheNewFieldIsZero) {
  struct Later {
    dsv4rt_engine_options options;
    std::int64_t new_field;
    std::int64_t beyond;
  } later;
  std::memset(&later, 0x5a, sizeof(later));
  ASSERT_EQ(dsv4rt_engine_options_init(&later.options, offsetof(Later, beyond)), DSV4RT_OK);
  EXPECT_EQ(later.options.struct_size, offsetof(Later, beyond));
  EXPECT_EQ(later.new_field, 0);
  EXPECT_EQ(later.beyond, 0x5a5a5a5a5a5a5a5a);

  const std::string path = checkpoint();
  const std::size_t struct_size = later.options.struct_size;
  later.options = options(path.c_str());
  later.options.struct_size = struct_size;
  dsv4rt_engine* engine = nullptr;
  EXPECT_EQ(dsv4rt_engine_create(&later.options, &engine, nullptr, 0), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK);
  later.new_field = 1;
  char message[256] = "";
  EXPECT_EQ(dsv4rt_engine_create(&later.options, &engine, message, sizeof(message)), DSV4RT_UNSUPPORTED);
  EXPECT_NE(std::string(message).find("dsv4rt_engine_options"), std::string::npos) << message;
  EXPECT_EQ(engine, nullptr);
}

TEST_F(CApiTest, MemoryPlanAddsUp) {
  const EngineHandle handle = open();
  dsv4rt_memory memory{};
  memory.struct_size = sizeof(memory);
  ASSERT_EQ(dsv4rt_engine_memory(handle.get(), &memory), DSV4RT_OK);
  EXPECT_GT(memory.weight_bytes, 0);
  EXPECT_GT(memory.workspace_bytes, 0);
  EXPECT_GT(memory.scratch_bytes, 0);
  EXPECT_EQ(memory.graph_bytes, 0);  // the CPU backend does not capture
  EXPECT_EQ(memory.total_bytes, memory.weight_bytes + memory.workspace_bytes + memory.scratch_bytes +
                                    memory.graph_bytes + memory.cache_bytes);
  EXPECT_EQ(memory.sharing_unit_tokens, 256);
  // Layers of configs/tiny.json: one with the window only, two CSA, one HCA.
  ASSERT_EQ(memory.region_count, 7U);
  std::int64_t regions_bytes = 0;
  double bytes_per_token = 0;
  std::vector<std::int32_t> layers(7, 0);
  for (std::size_t i = 0; i < memory.region_count; ++i) {
    dsv4rt_memory_region region{};
    region.struct_size = sizeof(region);
    ASSERT_EQ(dsv4rt_engine_memory_region(handle.get(), i, &region), DSV4RT_OK);
    regions_bytes += region.total_bytes;
    bytes_per_token += region.bytes_per_token;
    layers.at(static_cast<std::size_t>(region.role)) = region.layers;
    if (region.role == DSV4RT_ROLE_INDEX_K) {
      EXPECT_STREQ(region.role_name, "INDEX_K");
    }
  }
  EXPECT_EQ(layers, (std::vector<std::int32_t>{4, 2, 2, 1, 2, 2, 1}));
  EXPECT_EQ(memory.cache_bytes, regions_bytes + memory.block_table_bytes + memory.step_metadata_bytes);
  EXPECT_DOUBLE_EQ(memory.bytes_per_token, bytes_per_token);
  EXPECT_DOUBLE_EQ(memory.bytes_per_token, 2 * (584.0 + 68.0) / 4 + 584.0 / 128);

  dsv4rt_memory_region region{};
  region.struct_size = sizeof(region);
  EXPECT_EQ(dsv4rt_engine_memory_region(handle.get(), 7, &region), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(handle.get(), "index 7");
  region.struct_size = sizeof(region) - 8;
  EXPECT_EQ(dsv4rt_engine_memory_region(handle.get(), 0, &region), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(handle.get(), "struct_size");
}

TEST_F(CApiTest, ListsLayersInTwoCalls) {
  const EngineHandle handle = open();
  std::size_t count = 0;
  ASSERT_EQ(dsv4rt_engine_layers(handle.get(), nullptr, 0, &count), DSV4RT_OK);
  ASSERT_EQ(count, 4U);
  std::vector<std::int32_t> layers(count, -1);
  count = 0;
  EXPECT_EQ(dsv4rt_engine_layers(handle.get(), layers.data(), 3, &count), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(count, 4U);
  EXPECT_EQ(layers[0], -1);
  EXPECT_EQ(dsv4rt_engine_layers(handle.get(), layers.data(), count, &count), DSV4RT_OK);
  EXPECT_EQ(layers, (std::vector<std::int32_t>{0, 1, 2, 3}));
  std::int64_t hidden = 0;
  EXPECT_EQ(dsv4rt_engine_hidden_size(handle.get(), &hidden), DSV4RT_OK);
  EXPECT_EQ(hidden, 128);
}

TEST_F(CApiTest, SequencesForkTruncateAndRelease) {
  const EngineHandle handle = open();
  const dsv4rt_sequence parent = new_sequence(handle.get());
  append(handle.get(), parent, 40);
  dsv4rt_sequence child{};
  ASSERT_EQ(dsv4rt_sequence_fork(handle.get(), parent, 0, &child), DSV4RT_OK);
  EXPECT_NE(child.index, parent.index);
  append(handle.get(), child, 2);
  EXPECT_EQ(length(handle.get(), child), 42);
  EXPECT_EQ(length(handle.get(), parent), 40);
  EXPECT_EQ(dsv4rt_sequence_truncate(handle.get(), child, 39), DSV4RT_OK) << dsv4rt_engine_last_error(handle.get());
  EXPECT_EQ(length(handle.get(), child), 39);
  EXPECT_EQ(dsv4rt_sequence_truncate(handle.get(), child, 40), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_sequence_release(handle.get(), parent), DSV4RT_OK);
  EXPECT_EQ(length(handle.get(), child), 39);
}

TEST_F(CApiTest, PaddingRowsCountAsTokensOfTheStep) {
  const EngineHandle handle = open();
  const dsv4rt_step_entry entry{new_sequence(handle.get()), 3};
  const dsv4rt_step_options padded{.struct_size = sizeof(dsv4rt_step_options),
                                   .pad_to_tokens = 8,
                                   .capture = 0,
                                   .hook_key = 0,
                                   .token_ids = nullptr,
                                   .hand_over = 0,
                                   .hand_over_to = 0};
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &padded, &step), DSV4RT_OK);
  EXPECT_EQ(step.tokens, 8);
  EXPECT_EQ(step.valid_tokens, 3);
  EXPECT_EQ(run(handle.get(), step), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_commit(handle.get(), &step, nullptr, 0), DSV4RT_OK);
  EXPECT_EQ(length(handle.get(), entry.sequence), 3);

  const dsv4rt_step_options negative{.struct_size = sizeof(dsv4rt_step_options),
                                     .pad_to_tokens = -1,
                                     .capture = 0,
                                     .hook_key = 0,
                                     .token_ids = nullptr,
                                     .hand_over = 0,
                                     .hand_over_to = 0};
  EXPECT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &negative, &step), DSV4RT_INVALID_ARGUMENT);
  const dsv4rt_step_options huge{.struct_size = sizeof(dsv4rt_step_options),
                                 .pad_to_tokens = std::int64_t{1} << 32,
                                 .capture = 0,
                                 .hook_key = 0,
                                 .token_ids = nullptr,
                                 .hand_over = 0,
                                 .hand_over_to = 0};
  EXPECT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &huge, &step), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(handle.get(), "pad_to_tokens");
  const dsv4rt_step_options neither{.struct_size = sizeof(dsv4rt_step_options),
                                    .pad_to_tokens = 0,
                                    .capture = 2,
                                    .hook_key = 0,
                                    .token_ids = nullptr,
                                    .hand_over = 0,
                                    .hand_over_to = 0};
  EXPECT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &neither, &step), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(handle.get(), "capture");
}

TEST_F(CApiTest, LinearPrecisionIsTaken) {
  const std::string path = checkpoint();
  dsv4rt_engine_options given = options(path.c_str());
  const auto precision = [&given](const char* name) {
    given.linear_precision = name;
    const auto read = c_api::read_engine_options(&given);
    EXPECT_TRUE(read.ok()) << read.status().to_string();
    return read->engine.linear_precision;
  };
  EXPECT_EQ(precision(nullptr), LinearPrecision::kExact);
  EXPECT_EQ(precision("exact"), LinearPrecision::kExact);
  EXPECT_EQ(precision("fp8"), LinearPrecision::kFp8);
  EXPECT_EQ(precision("nvfp4"), LinearPrecision::kNvfp4);
  dsv4rt_engine* engine = nullptr;
  char message[512] = "";
  ASSERT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_OK) << message;
  EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK);
}

// A program built against version 1 has shorter structs.
TEST_F(CApiTest, OptionsOfOlderVersionsAreAccepted) {
  const std::string path = checkpoint();
  for (const std::size_t bytes : {104U, 128U, 136U, 144U, 168U, 176U}) {
    dsv4rt_engine_options older = options(path.c_str());
    older.struct_size = bytes;
    // Fields after the struct's end are not read.
    if (bytes < 136) older.nondeterministic = 99;
    if (bytes < 144) older.prefix_cache = reinterpret_cast<const dsv4rt_prefix_options*>(std::uintptr_t{99});
    if (bytes < 152) older.allow_non_finite_weights = older.check_outputs = 99;
    if (bytes < 176) older.parallel = reinterpret_cast<const dsv4rt_parallel_options*>(std::uintptr_t{99});
    older.linear_precision = reinterpret_cast<const char*>(std::uintptr_t{99});
    dsv4rt_engine* engine = nullptr;
    EXPECT_EQ(dsv4rt_engine_create(&older, &engine, nullptr, 0), DSV4RT_OK) << bytes;
    EXPECT_EQ(dsv4rt_engine_destroy(engine), DSV4RT_OK);
  }
}

TEST_F(CApiTest, StepOptionsOfOlderVersionsAreAccepted) {
  const EngineHandle handle = open();
  const dsv4rt_step_entry entry{new_sequence(handle.get()), 3};
  const auto* no_pointer = reinterpret_cast<const std::int32_t* const*>(std::uintptr_t{99});
  for (const std::size_t bytes : {16U, 32U, 40U}) {
    dsv4rt_step_options older{.struct_size = bytes,
                              .pad_to_tokens = 4,
                              .capture = 0,
                              .hook_key = 7,
                              .token_ids = bytes < 40 ? no_pointer : nullptr,
                              .hand_over = 99,
                              .hand_over_to = 99};
    if (bytes < 32) older.capture = 99;  // fields after the struct's end are not read
    dsv4rt_step step{};
    ASSERT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &older, &step), DSV4RT_OK) << bytes;
    EXPECT_EQ(step.tokens, 4);
    EXPECT_EQ(run(handle.get(), step), DSV4RT_OK);
    EXPECT_EQ(dsv4rt_step_commit(handle.get(), &step, nullptr, 0), DSV4RT_OK);
  }
}

// Ranks are told of what they would hand over where there are some (tests/mpi); here there is rank 0 alone.
TEST_F(CApiTest, HandingOverIsToldByTwoFields) {
  const EngineHandle handle = open();
  const dsv4rt_step_entry entry{new_sequence(handle.get()), 3};
  dsv4rt_step_options options{.struct_size = sizeof(options),
                              .pad_to_tokens = 0,
                              .capture = 0,
                              .hook_key = 0,
                              .token_ids = nullptr,
                              .hand_over = 2,
                              .hand_over_to = 0};
  dsv4rt_step step{};
  const auto expect_refused = [&](std::int64_t hand_over, std::int64_t to, const char* text) {
    options.hand_over = hand_over;
    options.hand_over_to = to;
    EXPECT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &options, &step), DSV4RT_INVALID_ARGUMENT);
    expect_error_names(handle.get(), text);
  };
  expect_refused(2, 0, "dsv4rt_step_options.hand_over: 2; accepted: 0 or 1");
  expect_refused(0, 1, "dsv4rt_step_options.hand_over_to: 1 without hand_over; accepted: 0");
  expect_refused(1, -1, "dsv4rt_step_options.hand_over_to: -1; accepted: a rank");
  expect_refused(1, std::int64_t{1} << 32, "dsv4rt_step_options.hand_over_to: 4294967296; accepted: a rank");
  expect_refused(1, 1, "hand_over_to = 1; accepted: ranks 0 to 0");
  options.hand_over_to = 0;
  ASSERT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &options, &step), DSV4RT_OK);
  EXPECT_EQ(run(handle.get(), step), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_commit(handle.get(), &step, nullptr, 0), DSV4RT_OK);
  EXPECT_EQ(length(handle.get(), entry.sequence), 3);
  dsv4rt_sequence_state state{};
  state.struct_size = sizeof(state);
  ASSERT_EQ(dsv4rt_sequence_get_state(handle.get(), entry.sequence, &state), DSV4RT_OK);
  EXPECT_EQ(state.held_by, -1);
}

TEST_F(CApiTest, MemoryOfOlderVersionsIsFilledToItsEnd) {
  const EngineHandle handle = open();
  for (const std::size_t bytes : {88U, 104U}) {
    dsv4rt_memory memory;
    std::memset(&memory, 0x5a, sizeof(memory));
    memory.struct_size = bytes;
    ASSERT_EQ(dsv4rt_engine_memory(handle.get(), &memory), DSV4RT_OK) << bytes;
    EXPECT_EQ(memory.region_count, 7U);
    EXPECT_EQ(memory.prefix_unit_tokens, 0x5a5a5a5a5a5a5a5a);
  }
}

// The CPU backend cannot capture: such steps run eagerly and give the same bytes.
TEST_F(CApiTest, CaptureOnTheCpuRunsEagerly) {
  const EngineHandle handle = open();
  const dsv4rt_step_entry entry{new_sequence(handle.get()), 3};
  const dsv4rt_step_options captured{.struct_size = sizeof(dsv4rt_step_options),
                                     .pad_to_tokens = 0,
                                     .capture = 1,
                                     .hook_key = 5,
                                     .token_ids = nullptr,
                                     .hand_over = 0,
                                     .hand_over_to = 0};
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(handle.get(), &entry, 1, &captured, &step), DSV4RT_OK);
  EXPECT_EQ(step.tokens, 3);
  EXPECT_EQ(run(handle.get(), step), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_engine_synchronize(handle.get()), DSV4RT_OK);
  EXPECT_EQ(dsv4rt_step_commit(handle.get(), &step, nullptr, 0), DSV4RT_OK);
  dsv4rt_graph_stats stats{};
  stats.struct_size = sizeof(stats);
  ASSERT_EQ(dsv4rt_engine_graph_stats(handle.get(), &stats), DSV4RT_OK);
  EXPECT_EQ(stats.eager_steps, 1);
  EXPECT_EQ(stats.replays, 0);
  void* stream = &stats;
  ASSERT_EQ(dsv4rt_engine_stream(handle.get(), &stream), DSV4RT_OK);
  EXPECT_EQ(stream, nullptr);
  dsv4rt_bf16* input = nullptr;
  ASSERT_EQ(dsv4rt_engine_input(handle.get(), &input), DSV4RT_OK);
  EXPECT_NE(input, nullptr);
}

TEST_F(CApiTest, CancelBeforeTheFirstLayerKeepsTheSequence) {
  const EngineHandle handle = open();
  const dsv4rt_sequence sequence = new_sequence(handle.get());
  append(handle.get(), sequence, 20);
  const dsv4rt_step step = prepare(handle.get(), sequence, 150);
  EXPECT_EQ(length(handle.get(), sequence), 170);
  dsv4rt_sequence emptied{};
  std::size_t count = 9;
  EXPECT_EQ(dsv4rt_step_cancel(handle.get(), &step, &emptied, 0, &count), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(handle.get(), "1 entries");
  EXPECT_EQ(dsv4rt_step_cancel(handle.get(), &step, &emptied, 1, &count), DSV4RT_OK);
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(length(handle.get(), sequence), 20);
  EXPECT_EQ(dsv4rt_step_cancel(handle.get(), &step, &emptied, 1, &count), DSV4RT_FAILED_PRECONDITION);
}

TEST_F(CApiTest, CancelAfterAllLayersNamesTheSequencesItHadToEmpty) {
  const EngineHandle handle = open();
  const dsv4rt_sequence prefilled = new_sequence(handle.get());
  const dsv4rt_sequence decoding = new_sequence(handle.get());
  append(handle.get(), prefilled, 20);
  append(handle.get(), decoding, 20);
  const dsv4rt_step_entry entries[] = {{decoding, 1}, {prefilled, 150}};  // 150 overwrite the window ring
  dsv4rt_step step{};
  ASSERT_EQ(dsv4rt_step_prepare(handle.get(), entries, 2, nullptr, &step), DSV4RT_OK);
  ASSERT_EQ(run(handle.get(), step), DSV4RT_OK);
  dsv4rt_sequence emptied[2] = {};
  std::size_t count = 9;
  ASSERT_EQ(dsv4rt_step_cancel(handle.get(), &step, emptied, 2, &count), DSV4RT_OK);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(emptied[0].index, prefilled.index);
  EXPECT_EQ(emptied[0].generation, prefilled.generation);
  EXPECT_EQ(length(handle.get(), prefilled), 0);
  EXPECT_EQ(length(handle.get(), decoding), 20);
  append(handle.get(), prefilled, 10);
}

}  // namespace
}  // namespace dsv4rt
