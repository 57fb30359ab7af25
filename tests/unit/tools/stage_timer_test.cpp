// Every stage of every layer is timed, step by step, without changing what the engine computes.
#include "tools/lib/stage_timer.h"

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {
namespace {

// What a layer's kind leaves out. A single token's window row enters the ring with the other rows.
bool has_stage(const LayerSpec& spec, Stage stage, std::int32_t tokens) {
  if (stage == Stage::kStoreWindow) return tokens > 1;
  if (stage == Stage::kIndexerTopk) return spec.indexer;
  if (stage == Stage::kExchange) return false;
  return true;
}

TEST(StageTimerTest, TimesEveryStageOfEveryLayer) {
  const GoldenCase golden = GoldenCase::open("tiny-bf16");
  const auto engine = make_engine(golden.options());
  const auto plain = make_engine(golden.options());
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden.inputs);
  {
    const auto timer = StageTimer::create(*engine);
    ASSERT_OK(timer);
    feeder.feed(sequence, 150);
    for (int i = 0; i < 3; ++i) feeder.feed(sequence, 1);
    ASSERT_OK((*timer)->finish());
    const std::vector<StageTime> times = (*timer)->medians();
    for (const std::int32_t tokens : {1, 150}) {
      for (const LayerId layer : engine->layers()) {
        for (int number = 0; number < kStageCount; ++number) {
          const auto stage = static_cast<Stage>(number);
          const auto time = std::find_if(times.begin(), times.end(), [&](const StageTime& t) {
            return t.tokens == tokens && t.layer == layer && t.stage == stage;
          });
          ASSERT_EQ(time != times.end(), has_stage(EngineInspector(*engine).layer_spec(layer), stage, tokens))
              << stage_name(stage) << " of layer " << layer.value;
          if (time == times.end()) continue;
          EXPECT_GT(time->microseconds, 0.0);
          EXPECT_EQ(time->steps, tokens == 1 ? 3 : 1);
        }
      }
    }
    // The decode step, stage after stage.
    const auto trace = nlohmann::json::parse((*timer)->chrome_trace());
    ASSERT_EQ(trace.size(), 3U * 5U + 1U);  // three layers, one of them with an indexer
    double end = 0;
    for (const auto& event : trace) {
      EXPECT_EQ(event["ph"], "X");
      EXPECT_EQ(event["args"]["tokens"], 1);
      EXPECT_GE(event["ts"].get<double>(), end - 0.002);  // printed with three digits
      end = event["ts"].get<double>() + event["dur"].get<double>();
    }
  }
  feeder.feed(sequence, 5);  // nobody observes any more
  SequenceFeeder reference(*plain);
  FedSequence expected = reference.create(golden.inputs);
  reference.feed_to(expected, sequence.length, 50);
  EXPECT_TRUE(sequence.outputs == expected.outputs);
}

TEST(StageTimerTest, NothingRunIsNothingTimed) {
  const auto engine = make_engine(GoldenCase::open("tiny-bf16").options());
  const auto timer = StageTimer::create(*engine);
  ASSERT_OK(timer);
  ASSERT_OK((*timer)->finish());
  EXPECT_TRUE((*timer)->medians().empty());
  EXPECT_EQ(nlohmann::json::parse((*timer)->chrome_trace()).size(), 0U);
}

// Notes what it is told.
class Listener final : public StageObserver {
 public:
  std::vector<std::string> heard;
  void begin_layer(LayerId layer, std::int32_t tokens) override {
    heard.push_back("layer " + std::to_string(layer.value) + " of " + std::to_string(tokens));
  }
  void begin(Stage stage) override { heard.push_back("+" + std::string(stage_name(stage))); }
  void end(Stage stage) override { heard.push_back("-" + std::string(stage_name(stage))); }
};

TEST(StageTimerTest, EarlierObserversHearTheSame) {
  GoldenCase golden = GoldenCase::open("tiny-bf16", 2, 1);  // a window layer
  EngineOptions options = golden.options();
  options.profiler_ranges = true;
  const auto engine = make_engine(options);
  EngineInspector inspector(*engine);
  Listener listener;
  StageObserver* ranges = inspector.observe_stages(&listener);
  EXPECT_NE(ranges, nullptr);
  SequenceFeeder feeder(*engine);
  FedSequence sequence = feeder.create(golden.inputs);
  {
    const auto timer = StageTimer::create(*engine);
    ASSERT_OK(timer);
    feeder.feed(sequence, 2);
  }
  const std::vector<std::string> first = listener.heard;
  EXPECT_EQ(first.front(), "layer 2 of 2");
  EXPECT_EQ(first[1], "+project");
  EXPECT_EQ(first[2], "-project");
  EXPECT_EQ(first.back(), "-output");
  listener.heard.clear();
  feeder.feed(sequence, 2);
  EXPECT_EQ(listener.heard, first);
  EXPECT_EQ(inspector.observe_stages(ranges), &listener);
  feeder.feed(sequence, 2);  // through the profiler's ranges
}

}  // namespace
}  // namespace dsv4rt::test
