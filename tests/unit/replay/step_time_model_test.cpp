#include "replay/step_time_model.h"

#include <cmath>

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

constexpr double kTolerance = 1e-6;

StepPoint decode(std::int64_t sequences, std::int64_t context, double us, std::int64_t tokens = 1) {
  return {.kind = StepKind::kDecode,
          .sequences = sequences,
          .context_tokens = context,
          .tokens = tokens,
          .microseconds = us};
}
StepPoint prefill(std::int64_t tokens, std::int64_t context, double us) {
  return {.kind = StepKind::kPrefill, .context_tokens = context, .tokens = tokens, .microseconds = us};
}

StepTimeModel model_of(std::vector<StepPoint> points, const ExpertTimes& experts = {}) {
  StepTable table;
  table.provenance = {{"device", "x"}};
  table.points = std::move(points);
  auto model = StepTimeModel::create(table, experts);
  EXPECT_OK(model);
  return *model;
}

StepTime decode_time(const StepTimeModel& model, std::int64_t sequences, std::int64_t context,
                     std::int64_t tokens_each = 1) {
  return model.time({.decode_sequences = sequences,
                     .decode_tokens = sequences * tokens_each,
                     .decode_context_tokens = sequences * context});
}
StepTime prefill_time(const StepTimeModel& model, std::int64_t tokens, double context) {
  return model.time({.prefill_sequences = 1,
                     .prefill_tokens = tokens,
                     .prefill_context_tokens = context * static_cast<double>(tokens)});
}

const std::vector<StepPoint> kGrid{decode(1, 100, 10),      decode(1, 10'000, 40),    decode(16, 100, 40),
                                   decode(16, 10'000, 160), prefill(100, 0, 100),     prefill(1600, 0, 1600),
                                   prefill(100, 1000, 200), prefill(1600, 1000, 3200)};

TEST(StepTimeModel, PointsAreMetAndBetweenThemTheTimeIsAPowerLaw) {
  const StepTimeModel model = model_of(kGrid);
  for (const auto& [sequences, context, us] : std::vector<std::tuple<int, int, double>>{
           {1, 100, 10}, {16, 10'000, 160}, {1, 1000, 20}, {4, 100, 20}, {4, 1000, 40}}) {
    const StepTime time = decode_time(model, sequences, context);
    EXPECT_NEAR(time.microseconds, us, kTolerance) << sequences << " x " << context;
    EXPECT_FALSE(time.extrapolated) << sequences << " x " << context;
  }
  EXPECT_NEAR(prefill_time(model, 400, 0).microseconds, 400, kTolerance);
  EXPECT_NEAR(prefill_time(model, 400, 1000).microseconds, 800, kTolerance);
  // In context it is linear: every cached token costs the same.
  EXPECT_NEAR(prefill_time(model, 400, 250).microseconds, 500, kTolerance);
  EXPECT_FALSE(prefill_time(model, 400, 10).extrapolated);
}

TEST(StepTimeModel, OutsideTheEdgeHoldsBelowAndThePowerLawAbove) {
  const StepTimeModel model = model_of(kGrid);
  const auto expect = [](const StepTime& time, double us) {
    EXPECT_NEAR(time.microseconds, us, us * 1e-9);
    EXPECT_TRUE(time.extrapolated);
  };
  expect(decode_time(model, 1, 5), 10);
  expect(decode_time(model, 64, 100), 80);
  expect(decode_time(model, 1, 1'000'000), 160);
  expect(prefill_time(model, 6400, 0), 6400);
  expect(prefill_time(model, 400, 3000), 1600);
  // Fewer tokens take less, but not less than a decode step.
  expect(prefill_time(model, 50, 0), 50);
  expect(prefill_time(model, 1, 0), 10);
}

// Twice the prompt takes more than twice the time: what is more belongs to the second half.
TEST(StepTimeModel, PartsAfterAContextAreDifferencesWhereOnlyWholePromptsWereMeasured) {
  const StepTimeModel model =
      model_of({decode(1, 100, 10), prefill(100, 0, 100), prefill(1600, 0, 6400)});  // n^1.5 / 10
  EXPECT_NEAR(prefill_time(model, 400, 400).microseconds, std::pow(800, 1.5) / 10 - 800, kTolerance);
  EXPECT_TRUE(prefill_time(model, 400, 400).extrapolated);
  EXPECT_NEAR(prefill_time(model, 400, 0).microseconds, 800, kTolerance);
  // A few tokens after much take as long as by themselves at least.
  const StepTimeModel even = model_of({decode(1, 100, 10), prefill(100, 0, 300), prefill(1600, 0, 1600)});
  EXPECT_NEAR(prefill_time(even, 100, 400).microseconds, 300, kTolerance);
}

// Contexts of rows need not agree: a row with one point holds it at every other context.
TEST(StepTimeModel, ASinglePointHoldsAndCountsAsExtrapolated) {
  const StepTimeModel model = model_of({decode(1, 100, 10), decode(16, 9999, 40), prefill(1000, 0, 500)});
  EXPECT_NEAR(decode_time(model, 4, 100).microseconds, 20, kTolerance);
  EXPECT_TRUE(decode_time(model, 4, 100).extrapolated);
  EXPECT_FALSE(decode_time(model, 1, 100).extrapolated);
  EXPECT_NEAR(prefill_time(model, 2000, 0).microseconds, 1000, kTolerance);
  EXPECT_NEAR(prefill_time(model, 500, 0).microseconds, 250, kTolerance);
  EXPECT_TRUE(prefill_time(model, 2000, 0).extrapolated);
  EXPECT_FALSE(prefill_time(model, 1000, 0).extrapolated);
  EXPECT_TRUE(prefill_time(model, 1000, 100).extrapolated);
}

TEST(StepTimeModel, VerifyStepsUseTheirOwnPointsOrCountTheirTokens) {
  std::vector<StepPoint> points = kGrid;
  const StepTime counted = decode_time(model_of(points), 4, 100, 4);
  EXPECT_NEAR(counted.microseconds, 40, kTolerance);  // like 16 sequences
  EXPECT_TRUE(counted.extrapolated);
  points.push_back(decode(4, 100, 25, 4));
  const StepTime measured = decode_time(model_of(points), 4, 100, 4);
  EXPECT_NEAR(measured.microseconds, 25, kTolerance);
  EXPECT_FALSE(measured.extrapolated);
}

TEST(StepTimeModel, AMixedStepReadsWeightsOnce) {
  const StepTimeModel model = model_of(kGrid);
  const auto mixed = [&](std::int64_t tokens) {
    return model
        .time({.decode_sequences = 16,
               .decode_tokens = 16,
               .decode_context_tokens = 1600,
               .prefill_sequences = 1,
               .prefill_tokens = tokens,
               .prefill_context_tokens = 0})
        .microseconds;
  };
  EXPECT_NEAR(mixed(400), 40 + 400 - 10, kTolerance);
  EXPECT_GE(mixed(1), 40 - kTolerance);
}

TEST(StepTimeModel, ExpertsTakeTimeByStepAndToken) {
  const StepTimeModel model = model_of(kGrid, {.us_per_step = 7, .us_per_token = 0.5});
  EXPECT_NEAR(decode_time(model, 16, 100).microseconds, 40 + 7 + 8, kTolerance);
  StepTable table;
  table.provenance = {{"device", "x"}};
  table.points = kGrid;
  EXPECT_TRUE(
      fails_with(StepTimeModel::create(table, {.us_per_step = -1}), StatusCode::kInvalidArgument, {"moe_us_per_step"}));
  table.points.clear();
  EXPECT_FALSE(StepTimeModel::create(table).ok());
}

}  // namespace
}  // namespace dsv4rt::replay::test
