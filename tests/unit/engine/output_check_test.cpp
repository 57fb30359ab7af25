// Whose outputs are not finite is known without being waited for.
#include <gtest/gtest.h>

#include "support/capturing_backend.h"
#include "support/golden_case.h"

namespace dsv4rt::test {
namespace {

class OutputCheckTest : public testing::Test {
 protected:
  OutputCheckTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  std::unique_ptr<Engine> make(bool check = true) {
    EngineOptions options = golden_.options();
    options.threads = 2;
    options.draft_budget_tokens = 3;
    options.check_outputs = check;
    options.on_warning = [this](std::string_view text) { warnings_.emplace_back(text); };
    options.limits = {.max_sequences = 3, .max_context_tokens = 200, .max_step_tokens = 64, .pool_tokens = 0};
    return make_engine(options);
  }

  struct Part {
    SequenceId sequence;
    std::int32_t tokens = 1;
    Bf16Bits value = 0x3c00;  // what the last row consists of; other rows are small numbers
  };
  static Step prepare(Engine& engine, const std::vector<Part>& parts, bool capture = false) {
    std::vector<StepEntry> entries;
    for (const Part& part : parts) entries.push_back({part.sequence, part.tokens});
    return engine.prepare(entries, {.pad_to_tokens = 8, .capture = capture}).value();
  }
  // The rows of a step; padding rows are NaN, and nobody's.
  std::vector<Bf16Bits> rows(const Step& step, const std::vector<Part>& parts) const {
    std::vector<Bf16Bits> x;
    for (const Part& part : parts) {
      x.insert(x.end(), static_cast<std::size_t>((part.tokens - 1) * golden_.hidden()), 0x3c10);
      x.insert(x.end(), static_cast<std::size_t>(golden_.hidden()), part.value);
    }
    x.resize(static_cast<std::size_t>(step.tokens * golden_.hidden()), 0x7fc0);
    return x;
  }
  Step run(Engine& engine, const std::vector<Part>& parts) {
    const Step step = prepare(engine, parts);
    const auto x = rows(step, parts);
    std::vector<Bf16Bits> out(x.size());
    for (const LayerId layer : engine.layers()) EXPECT_OK(engine.forward_layer(step, layer, x.data(), out.data()));
    EXPECT_OK(engine.commit(step));
    return step;
  }
  static std::vector<std::int32_t> entries(Engine& engine, const Step& step) {
    const auto check = engine.output_check(step);
    EXPECT_OK(check);
    EXPECT_TRUE(check->known);
    return check->entries;
  }

  using Entries = std::vector<std::int32_t>;
  static constexpr Bf16Bits kNan = 0x7fc0;
  static constexpr Bf16Bits kInfinity = 0xff80;
  GoldenCase golden_;
  std::vector<std::string> warnings_;
};

TEST_F(OutputCheckTest, NamesTheEntriesOfEveryStep) {
  const auto engine = make();
  const SequenceId a = engine->create_sequence().value();
  const SequenceId b = engine->create_sequence().value();
  const SequenceId c = engine->create_sequence().value();
  EXPECT_EQ(entries(*engine, run(*engine, {{a, 3}, {b, 2}, {c, 1}})), Entries{});
  EXPECT_TRUE(warnings_.empty());
  const Step bad = run(*engine, {{a, 3}, {b, 2, kNan}, {c, 1}});
  EXPECT_EQ(entries(*engine, bad), Entries{1});
  // It does not recover, its neighbours have nothing; entries are those of each step.
  EXPECT_EQ(entries(*engine, run(*engine, {{b, 1}, {a, 1}})), Entries{0});
  EXPECT_EQ(entries(*engine, run(*engine, {{a, 1}, {c, 2, kInfinity}, {b, 1}})), (Entries{1, 2}));
  EXPECT_EQ(entries(*engine, bad), Entries{1});
  EXPECT_EQ(engine->non_finite_entries(), 4);
  // Who comes into its slot begins anew.
  ASSERT_OK(engine->release(b));
  EXPECT_EQ(entries(*engine, run(*engine, {{engine->create_sequence().value(), 2}})), Entries{});
  // The first, the second and the fourth step would have been told of.
  ASSERT_EQ(warnings_.size(), 2U);
  EXPECT_NE(warnings_[0].find("step " + std::to_string(bad.serial) + " are not finite: 1 of its entries"),
            std::string::npos)
      << warnings_[0];
}

TEST_F(OutputCheckTest, CancelledStepsLeaveNoFlag) {
  const auto engine = make();
  const SequenceId a = engine->create_sequence().value();
  const std::vector<Part> parts = {{a, 2, kNan}};
  const Step step = prepare(*engine, parts);
  const auto x = rows(step, parts);
  std::vector<Bf16Bits> out(x.size());
  ASSERT_OK(engine->forward_layer(step, engine->layers()[0], x.data(), out.data()));
  EXPECT_TRUE(fails_with(engine->output_check(step), StatusCode::kFailedPrecondition, {"committed or cancelled"}));
  ASSERT_OK(engine->cancel(step));
  EXPECT_EQ(entries(*engine, step), Entries{0});
  EXPECT_EQ(entries(*engine, run(*engine, {{a, 2}})), Entries{});
  EXPECT_EQ(engine->non_finite_entries(), 1);
}

TEST_F(OutputCheckTest, KnowsTheLastEightSteps) {
  const auto engine = make();
  const SequenceId a = engine->create_sequence().value();
  const Step first = run(*engine, {{a, 1}});
  for (int i = 0; i < 7; ++i) run(*engine, {{a, 1}});
  EXPECT_EQ(entries(*engine, first), Entries{});
  run(*engine, {{a, 1}});
  EXPECT_TRUE(fails_with(engine->output_check(first), StatusCode::kFailedPrecondition, {"last 8"}));
  EXPECT_TRUE(fails_with(engine->output_check({}), StatusCode::kFailedPrecondition, {"step 0"}));
}

// A graph looks at the entries of the step that it runs, not at those of the step it was recorded for.
TEST_F(OutputCheckTest, CapturedStepsAreLookedAt) {
  const auto engine = make();
  BackendSwap backend(*engine);
  const SequenceId a = engine->create_sequence().value();
  const SequenceId b = engine->create_sequence().value();
  const auto run_captured = [&](const std::vector<Part>& parts) {
    const Step step = prepare(*engine, parts, true);
    const auto x = rows(step, parts);
    std::copy(x.begin(), x.end(), engine->input());
    EXPECT_OK(engine->step(step, engine->input(), [](const LayerOutput&) { return Status{}; }));
    EXPECT_OK(engine->commit(step));
    return step;
  };
  EXPECT_EQ(entries(*engine, run_captured({{a}, {b}})), Entries{});
  EXPECT_EQ(entries(*engine, run_captured({{a}, {b, 1, kNan}})), Entries{1});
  EXPECT_EQ(entries(*engine, run_captured({{b}, {a}})), Entries{0});
  EXPECT_EQ(engine->graph_stats().captures, 1);
  EXPECT_EQ(engine->graph_stats().replays, 3);
}

TEST_F(OutputCheckTest, NothingIsLookedAtUnlessAsked) {
  const auto engine = make(false);
  const SequenceId a = engine->create_sequence().value();
  const Step step = run(*engine, {{a, 1, kNan}});
  EXPECT_TRUE(fails_with(engine->output_check(step), StatusCode::kFailedPrecondition, {"check_outputs"}));
  EXPECT_EQ(engine->non_finite_entries(), 0);
  EXPECT_TRUE(warnings_.empty());
  EXPECT_EQ(make()->memory().workspace_bytes, engine->memory().workspace_bytes + 3 * 4);
}

}  // namespace
}  // namespace dsv4rt::test
