#include "tools/dsv4rt/engine_flags.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/expect_ok.h"

namespace dsv4rt::cli {
namespace {

using dsv4rt::test::fails_with;

// The options of a command that is given these arguments after its checkpoint.
Result<EngineOptions> options_of(std::vector<std::string> arguments) {
  EngineFlags flags;
  CLI::App command("command");
  flags.add_to(command);
  arguments.insert(arguments.begin(), {"--checkpoint", "somewhere"});
  command.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));  // CLI11 takes the last one first
  return flags.to_options();
}

TEST(EngineFlags, LinearPrecisionIsTaken) {
  const auto unsaid = options_of({});
  ASSERT_OK(unsaid);
  EXPECT_EQ(unsaid->linear_precision, LinearPrecision::kExact);
  const auto exact = options_of({"--linear-precision", "exact"});
  ASSERT_OK(exact);
  EXPECT_EQ(exact->linear_precision, LinearPrecision::kExact);
  const auto fp8 = options_of({"--linear-precision", "fp8"});
  ASSERT_OK(fp8);
  EXPECT_EQ(fp8->linear_precision, LinearPrecision::kFp8);
  const auto nvfp4 = options_of({"--linear-precision", "nvfp4"});
  ASSERT_OK(nvfp4);
  EXPECT_EQ(nvfp4->linear_precision, LinearPrecision::kNvfp4);
}

TEST(EngineFlags, OtherNamesAreRefusedByFlagAndValue) {
  for (const char* flag : {"--linear-precision", "--cache-format", "--index-format"}) {
    const auto refused = options_of({flag, "fp7"});
    EXPECT_TRUE(fails_with(refused, StatusCode::kInvalidArgument, {flag, "fp7"}));
  }
}

}  // namespace
}  // namespace dsv4rt::cli
