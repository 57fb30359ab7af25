#include "dsv4rt/status.h"

#include <memory>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/check.h"

namespace dsv4rt {
namespace {

constexpr int kFirstCode = 0;
constexpr int kLastCode = static_cast<int>(StatusCode::kBackendLost);

TEST(Status, DefaultIsOkAndHasNoMessage) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_TRUE(status.message().empty());
  EXPECT_EQ(status.to_string(), "ok");
  EXPECT_TRUE(Status::ok_status().ok());
}

TEST(Status, CarriesCodeAndMessage) {
  const Status status(StatusCode::kResourceExhausted, "role CSA_KV needs 4 blocks, 3 are free");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.to_string(), "resource exhausted: role CSA_KV needs 4 blocks, 3 are free");
}

TEST(Status, EveryCodeHasItsOwnName) {
  std::set<std::string> names;
  for (int code = kFirstCode; code <= kLastCode; ++code) {
    const std::string name(status_code_name(static_cast<StatusCode>(code)));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(kLastCode + 1)), "unknown");
  EXPECT_EQ(status_code_name(static_cast<StatusCode>(-1)), "unknown");
}

// The numbers are part of the C ABI.
TEST(Status, CodesKeepTheirNumbers) {
  EXPECT_EQ(static_cast<int>(StatusCode::kInvalidArgument), 1);
  EXPECT_EQ(static_cast<int>(StatusCode::kBadInput), 2);
  EXPECT_EQ(static_cast<int>(StatusCode::kNotFound), 3);
  EXPECT_EQ(static_cast<int>(StatusCode::kUnsupported), 4);
  EXPECT_EQ(static_cast<int>(StatusCode::kResourceExhausted), 5);
  EXPECT_EQ(static_cast<int>(StatusCode::kFailedPrecondition), 6);
  EXPECT_EQ(static_cast<int>(StatusCode::kStaleHandle), 7);
  EXPECT_EQ(static_cast<int>(StatusCode::kMismatch), 8);
  EXPECT_EQ(static_cast<int>(StatusCode::kFaulted), 9);
  EXPECT_EQ(static_cast<int>(StatusCode::kInternal), 10);
  EXPECT_EQ(static_cast<int>(StatusCode::kBackendLost), 11);
}

TEST(Result, HoldsAValue) {
  Result<std::string> result(std::string("row"));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(*result, "row");
  EXPECT_EQ(result->size(), 3u);
  *result += "s";
  EXPECT_EQ(result.value(), "rows");
}

TEST(Result, HoldsAFailure) {
  const Result<int> result(Status(StatusCode::kNotFound, "no tensor"));
  EXPECT_FALSE(result.ok());
  EXPECT_FALSE(static_cast<bool>(result));
  EXPECT_EQ(result.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(result.status().message(), "no tensor");
  EXPECT_THROW((void)result.value(), std::bad_variant_access);
}

TEST(Result, MovesAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  const std::unique_ptr<int> taken = *std::move(result);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(*taken, 7);
}

// A Result whose value type is Status-like text must not confuse the two states.
TEST(Result, KeepsApartValueAndFailureOfTheSameText) {
  const Result<std::string> value(std::string("failed"));
  const Result<std::string> failure(Status(StatusCode::kInternal, "failed"));
  EXPECT_TRUE(value.ok());
  EXPECT_FALSE(failure.ok());
}

TEST(Check, NamesConditionFileAndLine) {
  DSV4RT_CHECK(2 > 1);
  try {
    DSV4RT_CHECK(1 > 2);
    FAIL() << "the check passed";
  } catch (const CheckFailure& failure) {
    const std::string what = failure.what();
    EXPECT_NE(what.find("1 > 2"), std::string::npos) << what;
    EXPECT_NE(what.find("status_test.cpp:"), std::string::npos) << what;
  }
}

}  // namespace
}  // namespace dsv4rt
