// Metrics are Prometheus text that agrees with the engine's state and with what was done.
#include <gtest/gtest.h>

#include "layout/row_format.h"
#include "support/golden_case.h"
#include "support/prometheus_reader.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

class EngineMetricsTest : public testing::Test {
 protected:
  EngineMetricsTest() : golden_(GoldenCase::open("tiny-bf16")) {}

  std::unique_ptr<Engine> make(std::int32_t boundary_states) const {
    EngineOptions options = golden_.options();
    options.backend = "cpu";
    options.limits = {.max_sequences = 3,
                      .max_context_tokens = 512,
                      .max_step_tokens = 300,
                      .pool_tokens = 1024,
                      .boundary_states = boundary_states};
    return make_engine(options);
  }
  // Runs every layer on zeros and commits.
  void advance(Engine& engine, StepEntry entry, std::span<const std::int32_t> accepted = {}) const {
    const Step step = engine.prepare({&entry, 1}).value();
    const std::vector<Bf16Bits> x(static_cast<std::size_t>(step.tokens * golden_.hidden()));
    std::vector<Bf16Bits> out(x.size());
    for (const LayerId layer : engine.layers()) ASSERT_OK(engine.forward_layer(step, layer, x.data(), out.data()));
    ASSERT_OK(engine.commit(step, accepted));
  }

  const GoldenCase golden_;
};

TEST_F(EngineMetricsTest, AgreeWithStateAndSteps) {
  const auto engine = make(0);
  const SequenceId sequence = engine->create_sequence(300).value();
  advance(*engine, {sequence, 200});
  const std::int32_t accepted = 3;
  advance(*engine, {sequence, 4}, {&accepted, 1});
  const StepEntry entry{sequence, 1};
  ASSERT_OK(engine->cancel(engine->prepare({&entry, 1}).value()));
  const Step outstanding = engine->prepare({&entry, 1}).value();

  const PrometheusMetrics read = read_prometheus(engine->metrics().value());
  const auto sample = [&](const std::string& name) { return read.samples.at("dsv4rt_" + name); };
  const EngineState state = engine->state().value();
  EXPECT_EQ(sample("sequences"), 1);
  EXPECT_EQ(sample("sequences_max"), 3);
  EXPECT_EQ(sample("step_outstanding"), 1);
  EXPECT_EQ(sample("tokens_left"), static_cast<double>(state.tokens_left));
  EXPECT_EQ(sample("steps_total{outcome=\"committed\"}"), 2);
  EXPECT_EQ(sample("steps_total{outcome=\"cancelled\"}"), 1);
  EXPECT_EQ(sample("step_tokens_total{outcome=\"accepted\"}"), 203);
  EXPECT_EQ(sample("step_tokens_total{outcome=\"rejected\"}"), 1);
  EXPECT_EQ(sample("memory_bytes{part=\"weights\"}"), static_cast<double>(engine->memory().weight_bytes));
  double usage = 0;
  for (const RoleState& role : state.roles) {
    const std::string name(cache_role_name(role.role));
    EXPECT_EQ(sample("cache_blocks{role=\"" + name + "\",state=\"used\"}"), static_cast<double>(role.used_blocks));
    EXPECT_EQ(sample("cache_blocks{role=\"" + name + "\",state=\"free\"}"), static_cast<double>(role.free_blocks));
    EXPECT_EQ(sample("cache_blocks_reserved{role=\"" + name + "\"}"), static_cast<double>(role.reserved_blocks));
    usage = std::max(usage, static_cast<double>(role.used_blocks) / static_cast<double>(role.total_blocks));
  }
  EXPECT_GT(usage, 0);
  EXPECT_EQ(sample("kv_cache_usage_perc"), usage);
  for (const auto& [name, type] : read.types) EXPECT_EQ(name.find("prefix"), std::string::npos) << name;
  ASSERT_OK(engine->cancel(outstanding));
}

TEST_F(EngineMetricsTest, PrefixesAreCountedInTokensWhereTheyAreCached) {
  const auto engine = make(4);
  std::vector<std::int32_t> ids(300);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  const auto first = engine->create_sequence(ids, {});
  ASSERT_OK(first);
  const auto tokens = static_cast<std::int32_t>(ids.size() - static_cast<std::size_t>(first->hit_tokens));
  advance(*engine, {first->sequence, tokens, ids.data()});
  const auto second = engine->create_sequence(ids, {});
  ASSERT_OK(second);
  ASSERT_GT(second->hit_tokens, 0);

  const PrometheusMetrics read = read_prometheus(engine->metrics().value());
  EXPECT_EQ(read.samples.at("dsv4rt_prefix_cache_queries_total"), 600);
  EXPECT_EQ(read.samples.at("dsv4rt_prefix_cache_hits_total"), static_cast<double>(second->hit_tokens));
  EXPECT_EQ(read.samples.at("dsv4rt_prefix_lookups_total"), 2);
  EXPECT_EQ(read.samples.at("dsv4rt_prefix_units"), static_cast<double>(engine->prefix_stats().kept_units));
}

TEST_F(EngineMetricsTest, LabelsStandOnEverySampleAndAreEscaped) {
  const auto engine = make(0);
  const MetricLabel labels[] = {{"model_name", "a \"b\" \\ c\nd é"}, {"engine", "0"}};
  const PrometheusMetrics read = read_prometheus(engine->metrics(labels).value());
  for (const auto& [name, value] : read.samples) {
    EXPECT_NE(name.find(R"({model_name="a \"b\" \\ c\nd é",engine="0")"), std::string::npos) << name;
  }
  const auto refused = [&](std::initializer_list<MetricLabel> given, std::string_view word) {
    const std::vector<MetricLabel> all(given);
    EXPECT_TRUE(fails_with(engine->metrics(all), StatusCode::kInvalidArgument, {word}));
  };
  refused({{"", "x"}}, "''");
  refused({{"9a", "x"}}, "9a");
  refused({{"__name__", "x"}}, "__name__");
  refused({{"a-b", "x"}}, "a-b");
  refused({{"role", "x"}}, "role");
  refused({{"version", "x"}}, "version");
  refused({{"a", "x"}, {"a", "y"}}, "twice");
  refused({{"a", "\xff"}}, "UTF-8");
  refused({{"a", std::string(257, 'x')}}, "256");
  EXPECT_TRUE(fails_with(engine->metrics(std::vector<MetricLabel>(17, {"a", "b"})), StatusCode::kInvalidArgument,
                         {"17", "16"}));
}

}  // namespace
}  // namespace dsv4rt::test
