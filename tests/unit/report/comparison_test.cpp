#include "report/comparison.h"

#include <algorithm>
#include <cmath>

#include "saved_run.h"

namespace dsv4rt::report::test {
namespace {

using dsv4rt::test::fails_with;
using replay::test::Load;
using replay::test::small_options;

const ComparedNumber& named(const Comparison& comparison, const std::string& name) {
  const auto found = std::ranges::find(comparison.numbers, name, &ComparedNumber::name);
  EXPECT_NE(found, comparison.numbers.end()) << name;
  return *found;
}

Comparison compared(const Document& a, const Document& b) {
  auto comparison = compare_reports(a, "a", b, "b");
  EXPECT_OK(comparison);
  return comparison.ok() ? *comparison : Comparison{};
}

TEST(Comparison, ARunIsEqualToItself) {
  const Document report = busy_report();
  const Comparison comparison = compared(report, report);
  EXPECT_TRUE(comparison.settings.empty());
  EXPECT_GT(comparison.numbers.size(), 15U);
  for (const ComparedNumber& number : comparison.numbers) {
    EXPECT_EQ(number.difference(), 0) << number.name;
    EXPECT_EQ(number.bound.value_or(0), 0) << number.name;
    EXPECT_FALSE(number.beyond_noise()) << number.name;
  }
}

// The bound, worked out apart from the code: differences 1 .. 30 have a standard deviation of sqrt(30 * 31 / 12) =
// 8.80341; t is 2.045 for 29 degrees of freedom. 60 requests are 30 groups of 2.
TEST(Comparison, TheBoundIsThatOfBatchMeans) {
  Document a = busy_report();
  Document& a_groups = a["run"]["groups"]["each"];
  ASSERT_EQ(a_groups.size(), 30U);
  for (Document& group : a_groups) group["ttft_ms"]["count"] = 5;  // some groups have none
  Document b = a;
  Document& b_groups = b["run"]["groups"]["each"];
  // Up and down: neighbours are not alike.
  const auto difference = [](int g) { return g % 2 == 0 ? 1 + g / 2 : 30 - g / 2; };
  for (int g = 0; g < 30; ++g) {
    const Document& from = a_groups[static_cast<std::size_t>(g)];
    Document& to = b_groups[static_cast<std::size_t>(g)];
    to["output_tokens"] = from["output_tokens"].get<std::int64_t>() + difference(g);
    to["ttft_ms"]["p50"] = from["ttft_ms"]["p50"].get<double>() + difference(g);
    // In order they are as alike as is taken for chance: f = sqrt(1.9 / 0.1).
    to["ttft_ms"]["p99"] = from["ttft_ms"]["p99"].get<double>() + 1 + g;
  }
  Comparison comparison = compared(a, b);
  EXPECT_NEAR(*named(comparison, "output tokens").bound, 2.045 * 8.80341 * std::sqrt(30.0), 1e-3);
  EXPECT_NEAR(*named(comparison, "TTFT p50, ms").bound, 2.045 * 8.80341 / std::sqrt(30.0), 1e-3);
  EXPECT_NEAR(*named(comparison, "TTFT p99, ms").bound, 2.045 * 8.80341 / std::sqrt(30.0) * std::sqrt(19.0), 1e-3);
  EXPECT_FALSE(named(comparison, "ITL p50, ms").bound);
  // With seven groups that tell, nothing is claimed.
  for (std::size_t g = 7; g < 30; ++g) a_groups[g]["ttft_ms"]["count"] = 0;
  comparison = compared(a, b);
  EXPECT_FALSE(named(comparison, "TTFT p50, ms").bound);
}

// Other seeds change when requests arrive: noise. Half the load is no noise.
TEST(Comparison, AnotherSeedIsNoiseAndAnotherLoadIsNot) {
  const auto report = [](std::uint64_t seed, double speed) {
    replay::ModelReplayOptions options = small_options();
    options.replay.arrivals.jitter_ms = 200;
    options.replay.arrivals.speed = speed;
    options.replay.seed = seed;
    return report_of({.requests = 400, .every_ms = 25, .shared_prompts = 4}, options);
  };
  const Document base = report(1, 1);
  int beyond = 0;
  for (std::uint64_t seed = 2; seed < 7; ++seed) {
    beyond += named(compared(base, report(seed, 1)), "TTFT mean, ms").beyond_noise() ? 1 : 0;
  }
  EXPECT_LE(beyond, 2);
  const Comparison faster = compared(base, report(1, 2));
  EXPECT_TRUE(named(faster, "TTFT mean, ms").beyond_noise());
  EXPECT_TRUE(named(faster, "TPOT mean, ms").beyond_noise());
  ASSERT_EQ(faster.settings.size(), 1U);
  EXPECT_EQ(faster.settings[0].field, "speed");
}

TEST(Comparison, OtherRequestsAreRefusedWithTheFields) {
  const Document a = busy_report();
  Document b = a;
  b["log"]["sha256"] = std::string(64, 'b');
  b["log"]["block_tokens"] = 512;
  b["run"]["options"]["limit"] = 10;
  const auto refused = compare_reports(a, "a.json", b, "b.json");
  EXPECT_TRUE(fails_with(refused, StatusCode::kMismatch,
                         {"a.json and b.json", "log.sha256", "log.block_tokens (256, 512)", "options.limit (0, 10)"}));
  b = a;
  b["run"]["stopped"] = true;
  EXPECT_TRUE(fails_with(compare_reports(a, "a", b, "b"), StatusCode::kMismatch, {"stopped", "the second"}));
  b = a;
  b["execute"] = "none";
  EXPECT_TRUE(fails_with(compare_reports(a, "a", b, "b"), StatusCode::kMismatch, {"execute (model, none)"}));
  b = a;
  b["execute"] = "real";
  const Comparison real = compared(a, b);
  ASSERT_EQ(real.settings.size(), 1U);
  EXPECT_EQ(real.settings[0].field, "execute");
}

TEST(Comparison, DamagedReportsAreNamed) {
  const Document a = busy_report();
  Document b = a;
  b["run"]["groups"]["each"].erase(3);
  EXPECT_TRUE(fails_with(compare_reports(a, "a", b, "b"), StatusCode::kBadInput, {"/run/groups", "other groups"}));
  b = a;
  b["run"]["latency_ms"]["ttft"]["p99"] = "fast";
  EXPECT_TRUE(fails_with(compare_reports(a, "a", b, "b"), StatusCode::kBadInput, {"/run/latency_ms/ttft/p99"}));
  EXPECT_TRUE(fails_with(compare_reports(Document::array(), "a", b, "b"), StatusCode::kBadInput, {"an object"}));
  b = a;
  b["command"] = "bench";
  EXPECT_TRUE(fails_with(compare_reports(a, "a", b, "b"), StatusCode::kBadInput, {"a and b", "/command", "replay"}));
}

// Names of files and of fields may hold what a terminal acts on.
TEST(Comparison, NamesAreEscapedInMessages) {
  const Document a = busy_report();
  Document b = a;
  b["run"]["options"]["\x1b[2J"] = Document::array();
  EXPECT_TRUE(fails_with(compare_reports(a, "a", b, "b\n"), StatusCode::kBadInput,
                         {"a and b\\x0a: field /run/options/\\x1b[2J is array"}));
  b = a;
  b["log"]["requests"] = 1;
  EXPECT_TRUE(fails_with(compare_reports(a, "a\x1b", b, "b"), StatusCode::kMismatch, {"a\\x1b and b are not"}));
}

Document study(const Document& capacities) {
  Document report = busy_report();
  report.erase("run");
  report["execute"] = "none";
  report["policy"] = "lru";
  report["capacities"] = capacities;
  return report;
}

TEST(Comparison, StudiesAreComparedWhereBothHaveTheCapacity) {
  const Document a = study({{{"capacity_tokens", 1000}, {"hit_rate", 0.25}},
                            {{"capacity_tokens", "inf"}, {"hit_rate", 0.5}},
                            {{"capacity_tokens", 3000}, {"hit_rate", nullptr}}});
  const Document b = study({{{"capacity_tokens", "inf"}, {"hit_rate", 0.75}},
                            {{"capacity_tokens", 2000}, {"hit_rate", 0.5}},
                            {{"capacity_tokens", 3000}, {"hit_rate", 0.5}},
                            {{"capacity_tokens", 1000}, {"hit_rate", 0.125}}});
  const Comparison comparison = compared(a, b);
  ASSERT_EQ(comparison.numbers.size(), 2U);
  EXPECT_EQ(comparison.numbers[0].name, "hit rate at 1000");
  EXPECT_EQ(comparison.numbers[0].difference(), -0.125);
  EXPECT_TRUE(comparison.numbers[0].beyond_noise());
  EXPECT_EQ(comparison.numbers[1].name, "hit rate at inf");
  EXPECT_EQ(comparison.numbers[1].difference(), 0.25);
  EXPECT_TRUE(compared(a, study(nullptr)).numbers.empty());  // a log without prefix identity
}

// Every pair of thousands of equal entries would be a number each.
TEST(Comparison, ACapacityThatStandsThereOftenCountsOnce) {
  const Document entry{{"capacity_tokens", 1000}, {"hit_rate", 0.25}};
  Document capacities = Document::array();
  for (int i = 0; i < 3000; ++i) capacities.push_back(entry);
  EXPECT_EQ(compared(study(capacities), study(capacities)).numbers.size(), 1U);
}

}  // namespace
}  // namespace dsv4rt::report::test
