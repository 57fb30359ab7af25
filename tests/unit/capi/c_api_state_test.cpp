// State, configuration, views and warnings through the C interface.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "capi/c_api_handle.h"
#include "unit/capi/c_api_test.h"

namespace dsv4rt {
namespace {

template <class Struct>
Struct sized() {
  Struct value{};
  value.struct_size = sizeof(Struct);
  return value;
}

// One call with a struct to answer with: a null one, sizes that no version had, and a longer one are all dealt with.
template <class Struct, class Call>
void expect_checks_struct(dsv4rt_engine* engine, Call&& call) {
  EXPECT_EQ(call(engine, static_cast<Struct*>(nullptr)), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine, "must not be null");
  for (const std::size_t wrong : {std::size_t{0}, std::size_t{8}, sizeof(Struct) - 1, std::size_t{5000}}) {
    auto small = sized<Struct>();
    small.struct_size = wrong;
    EXPECT_EQ(call(engine, &small), DSV4RT_INVALID_ARGUMENT) << wrong;
    expect_error_names(engine, "struct_size: " + std::to_string(wrong));
    EXPECT_EQ(small.struct_size, wrong);
  }
  struct Longer {
    Struct known;
    std::uint64_t later;
  } longer{};
  longer.known.struct_size = sizeof(Longer);
  longer.later = 5;
  EXPECT_EQ(call(engine, &longer.known), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
  EXPECT_EQ(longer.later, 0U);
  EXPECT_EQ(call(static_cast<dsv4rt_engine*>(nullptr), &longer.known), DSV4RT_INVALID_ARGUMENT);
}

class CApiStateTest : public CApiTest {
 protected:
  CApiStateTest() : handle_(open()), engine_(handle_.get()), sequence_(new_sequence(engine_)) {}

  const EngineHandle handle_;
  dsv4rt_engine* const engine_;
  const dsv4rt_sequence sequence_;
};

TEST_F(CApiStateTest, StructsAreChecked) {
  const dsv4rt_step_entry entry{sequence_, 3};
  expect_checks_struct<dsv4rt_engine_state>(engine_, dsv4rt_engine_get_state);
  expect_checks_struct<dsv4rt_role_state>(engine_, [](dsv4rt_engine* engine, dsv4rt_role_state* state) {
    return dsv4rt_engine_role_state(engine, DSV4RT_ROLE_CSA_KV, state);
  });
  expect_checks_struct<dsv4rt_sequence_state>(engine_, [&](dsv4rt_engine* engine, dsv4rt_sequence_state* state) {
    return dsv4rt_sequence_get_state(engine, sequence_, state);
  });
  expect_checks_struct<dsv4rt_block_shortage>(engine_, [&](dsv4rt_engine* engine, dsv4rt_block_shortage* shortage) {
    return dsv4rt_step_can_prepare(engine, &entry, 1, nullptr, shortage);
  });
  expect_checks_struct<dsv4rt_config>(engine_, dsv4rt_engine_config);
  expect_checks_struct<dsv4rt_layer_info>(engine_, [](dsv4rt_engine* engine, dsv4rt_layer_info* info) {
    return dsv4rt_engine_layer_info(engine, 1, info);
  });
  expect_checks_struct<dsv4rt_cache_view>(engine_, [](dsv4rt_engine* engine, dsv4rt_cache_view* view) {
    return dsv4rt_engine_cache_view(engine, 0, DSV4RT_ROLE_SWA_KV, view);
  });
}

TEST_F(CApiStateTest, AnswersAsTheEngineDoes) {
  append(engine_, sequence_, 130);
  const dsv4rt_step step = prepare(engine_, sequence_, 2);
  const Engine& engine = *engine_->engine;
  auto state = sized<dsv4rt_engine_state>();
  ASSERT_EQ(dsv4rt_engine_get_state(engine_, &state), DSV4RT_OK);
  const EngineState expected = engine.state().value();
  EXPECT_EQ(state.max_sequences, kMaxSequences);
  EXPECT_EQ(state.live_sequences, 1);
  EXPECT_EQ(state.step_serial, step.serial);
  EXPECT_EQ(state.tokens_left, expected.tokens_left);
  for (std::int32_t role = 0; role < kCacheRoleCount; ++role) {
    auto blocks = sized<dsv4rt_role_state>();
    ASSERT_EQ(dsv4rt_engine_role_state(engine_, role, &blocks), DSV4RT_OK);
    const auto found = std::find_if(expected.roles.begin(), expected.roles.end(),
                                    [&](const RoleState& other) { return static_cast<int>(other.role) == role; });
    EXPECT_EQ(blocks.layers, found == expected.roles.end() ? 0 : found->layers);
    EXPECT_EQ(blocks.used_blocks, found == expected.roles.end() ? 0 : found->used_blocks);
    EXPECT_EQ(blocks.total_blocks,
              blocks.free_blocks + blocks.used_blocks + blocks.cached_blocks + blocks.pinned_blocks);
  }
  auto one = sized<dsv4rt_sequence_state>();
  ASSERT_EQ(dsv4rt_sequence_get_state(engine_, sequence_, &one), DSV4RT_OK);
  EXPECT_EQ(one.length, 132);
  EXPECT_EQ(one.slot, 0);
  EXPECT_GT(one.earliest_truncation, 0);
  EXPECT_LE(one.earliest_truncation, 132);
  EXPECT_EQ(one.blocks[DSV4RT_ROLE_CSA_KV], 1);
  EXPECT_EQ(one.blocks[DSV4RT_ROLE_SWA_KV], 0);
  dsv4rt_sequence_state stale = one;
  EXPECT_EQ(dsv4rt_sequence_get_state(engine_, {7, 7}, &stale), DSV4RT_STALE_HANDLE);
  EXPECT_EQ(std::memcmp(&stale, &one, sizeof(one)), 0);
  const EngineHandle other = open();
  const dsv4rt_sequence foreign = new_sequence(other.get());
  EXPECT_EQ(dsv4rt_sequence_get_state(engine_, foreign, &stale), DSV4RT_STALE_HANDLE);

  auto config = sized<dsv4rt_config>();
  ASSERT_EQ(dsv4rt_engine_config(engine_, &config), DSV4RT_OK);
  EXPECT_EQ(config.hidden_size, hidden_);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.head_dim, 512);
  EXPECT_EQ(config.draft_budget_tokens, kDraftTokens);
  EXPECT_STREQ(config.row_format, "fp8_ds_mla");
  EXPECT_STREQ(config.index_format, "mxfp4");
  for (std::size_t i = 0; i < 4; ++i) {
    auto info = sized<dsv4rt_layer_info>();
    ASSERT_EQ(dsv4rt_engine_layer_info(engine_, i, &info), DSV4RT_OK);
    const LayerSpec& spec = engine.layer_specs()[i];
    EXPECT_EQ(info.layer, spec.id.value);
    EXPECT_EQ(info.kind_name, attention_kind_name(spec.kind));
    EXPECT_EQ(info.kind, static_cast<int>(spec.kind));
    EXPECT_EQ(info.ratio, spec.ratio);
    EXPECT_EQ(info.indexer == 1, spec.indexer);
  }
  auto info = sized<dsv4rt_layer_info>();
  EXPECT_EQ(dsv4rt_engine_layer_info(engine_, 4, &info), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine_, "index 4; 4 layers");
}

TEST_F(CApiStateTest, ForetellsShortages) {
  const dsv4rt_sequence other = new_sequence(engine_);
  auto shortage = sized<dsv4rt_block_shortage>();
  const dsv4rt_step_entry fits[] = {{sequence_, 20}, {other, 5}};
  ASSERT_EQ(dsv4rt_step_can_prepare(engine_, fits, 2, nullptr, &shortage), DSV4RT_OK);
  EXPECT_EQ(shortage.missing_blocks, 0);
  EXPECT_EQ(dsv4rt_step_can_prepare(engine_, nullptr, 1, nullptr, &shortage), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_can_prepare(engine_, fits, 4, nullptr, &shortage), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(engine_, "dsv4rt_step_can_prepare: 4 entries");
  const dsv4rt_step_entry stale{{9, 9}, 1};
  EXPECT_EQ(dsv4rt_step_can_prepare(engine_, &stale, 1, nullptr, &shortage), DSV4RT_STALE_HANDLE);

  dsv4rt_engine_options narrow = options(nullptr);
  const std::string path = checkpoint();
  narrow.checkpoint = path.c_str();
  narrow.pool_tokens = 512;
  narrow.csa_rows_per_block = 16;
  dsv4rt_engine* created = nullptr;
  ASSERT_EQ(dsv4rt_engine_create(&narrow, &created, nullptr, 0), DSV4RT_OK);
  const EngineHandle engine(created);
  dsv4rt_sequence reserved{};
  ASSERT_EQ(dsv4rt_sequence_create(created, 512, &reserved), DSV4RT_OK);
  const dsv4rt_step_entry entries[] = {{reserved, 10}, {new_sequence(created), 150}};
  auto left = sized<dsv4rt_engine_state>();
  dsv4rt_sequence rest{};
  ASSERT_EQ(dsv4rt_engine_get_state(created, &left), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_sequence_create(created, left.tokens_left, &rest), DSV4RT_OK);
  auto role = sized<dsv4rt_role_state>();
  ASSERT_EQ(dsv4rt_step_can_prepare(created, entries, 2, nullptr, &shortage), DSV4RT_OK);
  dsv4rt_step step{};
  const dsv4rt_status prepared = dsv4rt_step_prepare(created, entries, 2, nullptr, &step);
  ASSERT_EQ(prepared, DSV4RT_RESOURCE_EXHAUSTED);
  EXPECT_EQ(shortage.entry, 1);
  EXPECT_GT(shortage.missing_blocks, 0);
  EXPECT_GT(shortage.missing_bytes, 0);
  EXPECT_EQ(dsv4rt_engine_role_state(created, shortage.role, &role), DSV4RT_OK);
  EXPECT_GT(role.reserved_blocks, 0);
  EXPECT_EQ(dsv4rt_engine_role_state(created, -1, &role), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_role_state(created, 7, &role), DSV4RT_INVALID_ARGUMENT);
  expect_error_names(created, "role 7; accepted: ");
}

TEST_F(CApiStateTest, ViewsAreThoseOfTheEngine) {
  append(engine_, sequence_, 130);
  auto view = sized<dsv4rt_cache_view>();
  ASSERT_EQ(dsv4rt_engine_cache_view(engine_, 1, DSV4RT_ROLE_CSA_KV, &view), DSV4RT_OK);
  const CacheView expected = engine_->engine->cache_view(LayerId(1), CacheRole::kCsaKv).value();
  EXPECT_EQ(view.base, expected.base);
  EXPECT_EQ(view.block_stride_bytes, expected.block_stride_bytes);
  EXPECT_EQ(view.block_count, expected.block_count);
  EXPECT_EQ(view.rows_per_block, 64);
  EXPECT_EQ(view.data_bytes + view.scale_bytes, 584);
  EXPECT_EQ(view.scale_offset, 64 * view.data_bytes);
  EXPECT_EQ(view.tokens_per_row, 4);
  EXPECT_STREQ(view.format, "fp8_ds_mla");
  EXPECT_EQ(view.block_table, expected.block_table);
  EXPECT_GT(view.block_table[0], 0);
  ASSERT_EQ(dsv4rt_engine_cache_view(engine_, 1, DSV4RT_ROLE_CSA_STATE, &view), DSV4RT_OK);
  EXPECT_STREQ(view.format, "f32_state");
  EXPECT_EQ(view.block_table, nullptr);
  EXPECT_EQ(dsv4rt_engine_cache_view(engine_, 0, DSV4RT_ROLE_HCA_KV, &view), DSV4RT_NOT_FOUND);
  EXPECT_EQ(dsv4rt_engine_cache_view(engine_, 9, DSV4RT_ROLE_SWA_KV, &view), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_cache_view(engine_, 0, 7, &view), DSV4RT_INVALID_ARGUMENT);
}

TEST_F(CApiStateTest, DescriptionIsJsonOfItsLength) {
  std::size_t bytes = 0;
  ASSERT_EQ(dsv4rt_engine_describe(engine_, nullptr, 0, &bytes), DSV4RT_OK);
  std::vector<char> text(bytes + 1, 'x');
  EXPECT_EQ(dsv4rt_engine_describe(engine_, text.data(), bytes, &bytes), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(text[0], 'x');
  ASSERT_EQ(dsv4rt_engine_describe(engine_, text.data(), text.size(), &bytes), DSV4RT_OK);
  EXPECT_EQ(std::strlen(text.data()), bytes);
  EXPECT_EQ(std::string(text.data()), engine_->engine->describe().value());
  EXPECT_EQ(dsv4rt_engine_describe(engine_, nullptr, 4, &bytes), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_describe(engine_, text.data(), 4, nullptr), DSV4RT_INVALID_ARGUMENT);
}

TEST_F(CApiStateTest, MetricsCarryTheLabelsGiven) {
  const dsv4rt_metric_label labels[] = {{"engine", "7"}, {"model_name", "flash"}};
  std::size_t bytes = 0;
  ASSERT_EQ(dsv4rt_engine_metrics(engine_, labels, 2, nullptr, 0, &bytes), DSV4RT_OK);
  std::vector<char> text(bytes + 1, 'x');
  EXPECT_EQ(dsv4rt_engine_metrics(engine_, labels, 2, text.data(), bytes, &bytes), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(text[0], 'x');
  ASSERT_EQ(dsv4rt_engine_metrics(engine_, labels, 2, text.data(), text.size(), &bytes), DSV4RT_OK);
  EXPECT_EQ(std::strlen(text.data()), bytes);
  const MetricLabel expected[] = {{"engine", "7"}, {"model_name", "flash"}};
  EXPECT_EQ(std::string(text.data()), engine_->engine->metrics(expected).value());
  ASSERT_EQ(dsv4rt_engine_metrics(engine_, nullptr, 0, nullptr, 0, &bytes), DSV4RT_OK);
  EXPECT_LT(bytes, text.size());
  EXPECT_EQ(dsv4rt_engine_metrics(engine_, nullptr, 1, nullptr, 0, &bytes), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_metrics(engine_, labels, 2, nullptr, 0, nullptr), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_engine_metrics(engine_, labels, 17, nullptr, 0, &bytes), DSV4RT_INVALID_ARGUMENT);
  const dsv4rt_metric_label nameless{nullptr, "x"};
  const dsv4rt_metric_label valueless{"x", nullptr};
  const dsv4rt_metric_label taken{"role", "x"};
  for (const dsv4rt_metric_label& wrong : {nameless, valueless, taken}) {
    EXPECT_EQ(dsv4rt_engine_metrics(engine_, &wrong, 1, nullptr, 0, &bytes), DSV4RT_INVALID_ARGUMENT);
  }
}

struct Seen {
  dsv4rt_engine* engine = nullptr;
  std::vector<std::int64_t> layers;
  std::uint64_t serial = 0;
  dsv4rt_status change = DSV4RT_OK;
  dsv4rt_status answer = DSV4RT_OK;
};

dsv4rt_status record(void* user_data, const dsv4rt_layer_output* output) {
  Seen& seen = *static_cast<Seen*>(user_data);
  seen.layers.push_back(output->layer);
  seen.serial = output->step->serial;
  EXPECT_EQ(output->struct_size, sizeof(*output));
  EXPECT_EQ(output->stream, nullptr);
  EXPECT_NE(output->output, nullptr);
  if (output->next_input != nullptr) std::memset(output->next_input, 0, 256);
  dsv4rt_sequence sequence{};
  seen.change = dsv4rt_sequence_create(seen.engine, 0, &sequence);
  auto state = sized<dsv4rt_engine_state>();
  EXPECT_EQ(dsv4rt_engine_get_state(seen.engine, &state), DSV4RT_OK);
  return seen.answer;
}

TEST_F(CApiStateTest, HooksAreToldStepAndLayer) {
  const dsv4rt_step step = prepare(engine_, sequence_, 1);
  const std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(hidden_));
  Seen seen{.engine = engine_, .layers = {}};
  EXPECT_EQ(dsv4rt_step_run_with_outputs(engine_, &step, x.data(), nullptr, &seen), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_run_with_outputs(engine_, &step, nullptr, record, &seen), DSV4RT_INVALID_ARGUMENT);
  EXPECT_EQ(dsv4rt_step_run_with_outputs(engine_, nullptr, x.data(), record, &seen), DSV4RT_INVALID_ARGUMENT);
  ASSERT_EQ(dsv4rt_step_run_with_outputs(engine_, &step, x.data(), record, &seen), DSV4RT_OK);
  EXPECT_EQ(seen.layers, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(seen.serial, step.serial);
  EXPECT_EQ(seen.change, DSV4RT_FAILED_PRECONDITION);
  EXPECT_EQ(dsv4rt_step_commit(engine_, &step, nullptr, 0), DSV4RT_OK);
  const dsv4rt_step failing = prepare(engine_, sequence_, 1);
  seen.answer = DSV4RT_UNSUPPORTED;
  EXPECT_EQ(dsv4rt_step_run_with_outputs(engine_, &failing, x.data(), record, &seen), DSV4RT_UNSUPPORTED);
  expect_error_names(engine_, "the hook of layer 0");
}

// Outputs that are not finite are what the CPU backend warns of.
TEST_F(CApiStateTest, WarningsReachTheCaller) {
  std::vector<std::string> texts;
  const std::string path = checkpoint();
  dsv4rt_engine_options given = options(path.c_str());
  given.check_outputs = 1;
  given.on_warning = [](void* user_data, const char* text) {
    static_cast<std::vector<std::string>*>(user_data)->emplace_back(text);
  };
  given.warning_user_data = &texts;
  dsv4rt_engine* created = nullptr;
  ASSERT_EQ(dsv4rt_engine_create(&given, &created, nullptr, 0), DSV4RT_OK);
  const EngineHandle engine(created);
  const dsv4rt_step step = prepare(created, new_sequence(created), 1);
  const std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(hidden_), dsv4rt_bf16{0x7fc0});
  std::int32_t tokens = 1;
  ASSERT_EQ(dsv4rt_step_run(created, &step, x.data(), zero_hook, &tokens), DSV4RT_OK);
  ASSERT_EQ(dsv4rt_step_commit(created, &step, nullptr, 0), DSV4RT_OK);
  ASSERT_EQ(texts.size(), 1U);
  EXPECT_NE(texts[0].find("not finite"), std::string::npos) << texts[0];
}

}  // namespace
}  // namespace dsv4rt
