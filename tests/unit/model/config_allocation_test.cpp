// Whichever allocation of reading a config fails, the call says so; nothing ends the process and nothing is lost.
#include <string>

#include <gtest/gtest.h>

#include "base/input_file.h"
#include "dsv4rt/model.h"
#include "support/fail_allocations.h"

namespace dsv4rt::test {
namespace {

struct Sweep {
  std::int64_t points = 0;
  std::int64_t refused = 0;
};

// Fails the n-th allocation (and, in the other mode, all from it on) for every n until none of the call's is left.
Sweep sweep(Failing mode, const std::string& text) {
  Sweep sweep;
  for (std::int64_t n = 1; n < 100'000; ++n) {
    const std::int64_t outstanding = allocation_faults.outstanding;
    allocation_faults.until_failure = n;
    allocation_faults.failures = 0;
    allocation_faults.mode = mode;
    {
      const Result<ModelConfig> config = ModelConfig::from_json(text, "c");
      allocation_faults.mode = Failing::kNone;
      if (allocation_faults.failures > 0 && !config.ok()) {
        ++sweep.refused;
        EXPECT_EQ(config.status().code(), StatusCode::kResourceExhausted) << n << config.status().to_string();
      }
    }
    EXPECT_EQ(allocation_faults.outstanding, outstanding) << n;
    if (allocation_faults.failures == 0) return sweep;
    ++sweep.points;
  }
  ADD_FAILURE() << "no end";
  return sweep;
}

class ConfigAllocationTest : public testing::TestWithParam<Failing> {};

TEST_P(ConfigAllocationTest, EveryFailureIsAStatus) {
  const auto text =
      read_whole_file(std::string(DSV4RT_SOURCE_DIR) + "/configs/deepseek-v4-flash.json", std::size_t{1} << 20);
  ASSERT_TRUE(text.ok());
  const Sweep whole = sweep(GetParam(), *text);
  EXPECT_GT(whole.refused, 20);
  // A refused document is taken apart too.
  const Sweep refused = sweep(GetParam(), R"({"a":[[1,2],{"b":[{}]}],"rope_scaling":{"type":[{"c":1}]}})");
  EXPECT_GT(refused.points, 10);
  RecordProperty("points", static_cast<int>(whole.points + refused.points));
}

INSTANTIATE_TEST_SUITE_P(Modes, ConfigAllocationTest, testing::Values(Failing::kNth, Failing::kFromNthOn),
                         [](const auto& info) { return info.param == Failing::kNth ? "nth" : "from_nth_on"; });

}  // namespace
}  // namespace dsv4rt::test
