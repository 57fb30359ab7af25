// A tiny checkpoint and engines over it, for the tests of the C interface.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/bfloat16.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "checkpoint/synthetic_values.h"
#include "dsv4rt/c_api.h"
#include "dsv4rt/engine.h"
#include "unit/checkpoint/test_files.h"

namespace dsv4rt {

inline constexpr std::int32_t kMaxSequences = 3;
inline constexpr std::int32_t kMaxStepTokens = 160;
inline constexpr std::int64_t kMaxContextTokens = 512;
inline constexpr std::int32_t kDraftTokens = 4;

// Rows [tokens, hidden] of the input of `layer` in step number `step`: the same for both interfaces.
inline std::vector<Bf16Bits> input_rows(int step, std::int32_t layer, std::int64_t tokens, std::int64_t hidden) {
  const SyntheticStream stream(11, "step " + std::to_string(step) + " layer " + std::to_string(layer));
  std::vector<Bf16Bits> rows(static_cast<std::size_t>(tokens * hidden));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = to_bf16(stream.normal(i)).bits;
  return rows;
}

struct EngineDeleter {
  void operator()(dsv4rt_engine* engine) const { dsv4rt_engine_destroy(engine); }
};
using EngineHandle = std::unique_ptr<dsv4rt_engine, EngineDeleter>;

// One checkpoint of configs/tiny.json for all tests of the program: four layers, d 128.
class CApiTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<TempDirectory>();
    const auto config = ModelConfig::from_file(std::filesystem::path(DSV4RT_SOURCE_DIR) / "configs/tiny.json");
    ASSERT_TRUE(config.ok()) << config.status().to_string();
    const auto schedule = LayerSchedule::create(*config);
    ASSERT_TRUE(schedule.ok()) << schedule.status().to_string();
    const Status written = write_synthetic_checkpoint(checkpoint(), *config, schedule->layers(), {.seed = 3});
    ASSERT_TRUE(written.ok()) << written.to_string();
    hidden_ = config->hidden_size;
  }
  static void TearDownTestSuite() { directory_.reset(); }

  static std::string checkpoint() { return (*directory_ / "tiny").string(); }

  // Options over `path`, which must outlive them.
  static dsv4rt_engine_options options(const char* path) {
    dsv4rt_engine_options options;
    EXPECT_EQ(dsv4rt_engine_options_init(&options, sizeof(options)), DSV4RT_OK);
    options.checkpoint = path;
    options.threads = 1;
    options.max_sequences = kMaxSequences;
    options.max_context_tokens = kMaxContextTokens;
    options.max_step_tokens = kMaxStepTokens;
    options.draft_budget_tokens = kDraftTokens;
    return options;
  }

  static EngineHandle open() {
    const std::string path = checkpoint();
    const dsv4rt_engine_options given = options(path.c_str());
    dsv4rt_engine* engine = nullptr;
    char message[512] = "";
    EXPECT_EQ(dsv4rt_engine_create(&given, &engine, message, sizeof(message)), DSV4RT_OK) << message;
    return EngineHandle(engine);
  }

  static dsv4rt_sequence new_sequence(dsv4rt_engine* engine) {
    dsv4rt_sequence sequence{};
    EXPECT_EQ(dsv4rt_sequence_create(engine, 0, &sequence), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    return sequence;
  }

  static dsv4rt_step prepare(dsv4rt_engine* engine, dsv4rt_sequence sequence, std::int32_t tokens) {
    const dsv4rt_step_entry entry{sequence, tokens};
    dsv4rt_step step{};
    EXPECT_EQ(dsv4rt_step_prepare(engine, &entry, 1, nullptr, &step), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    return step;
  }

  // A hook for runs whose values do not matter: every layer gets zeros.
  static dsv4rt_status zero_hook(void* tokens, std::int32_t, const dsv4rt_bf16*, dsv4rt_bf16* next_input) {
    const auto values = *static_cast<std::int32_t*>(tokens) * hidden_;
    if (next_input != nullptr) std::fill(next_input, next_input + values, dsv4rt_bf16{0});
    return DSV4RT_OK;
  }

  static dsv4rt_status run(dsv4rt_engine* engine, dsv4rt_step step) {
    const std::vector<dsv4rt_bf16> x(static_cast<std::size_t>(step.tokens * hidden_));
    return dsv4rt_step_run(engine, &step, x.data(), zero_hook, &step.tokens);
  }

  static void append(dsv4rt_engine* engine, dsv4rt_sequence sequence, std::int32_t tokens) {
    const dsv4rt_step step = prepare(engine, sequence, tokens);
    EXPECT_EQ(run(engine, step), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    EXPECT_EQ(dsv4rt_step_commit(engine, &step, nullptr, 0), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
  }

  static std::int64_t length(dsv4rt_engine* engine, dsv4rt_sequence sequence) {
    std::int64_t tokens = -1;
    EXPECT_EQ(dsv4rt_sequence_length(engine, sequence, &tokens), DSV4RT_OK) << dsv4rt_engine_last_error(engine);
    return tokens;
  }

  static inline std::unique_ptr<TempDirectory> directory_;
  static inline std::int64_t hidden_ = 0;
};

// The text of the engine's last failure contains `part`.
inline void expect_error_names(const dsv4rt_engine* engine, const std::string& part) {
  EXPECT_NE(std::string(dsv4rt_engine_last_error(engine)).find(part), std::string::npos)
      << "'" << dsv4rt_engine_last_error(engine) << "' does not name '" << part << "'";
}

}  // namespace dsv4rt
