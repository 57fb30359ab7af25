// Assertions on Status and Result that print the message when they fail.
#pragma once

#include <string_view>

#include <gtest/gtest.h>

#include "dsv4rt/status.h"

namespace dsv4rt::test {

inline const Status& status_of(const Status& status) {
  return status;
}
template <class T>
Status status_of(const Result<T>& result) {
  return result.status();
}

template <class T>
testing::AssertionResult is_ok(const T& outcome) {
  const Status status = status_of(outcome);
  return status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status.to_string();
}

// Fails with `code`, and the message contains every one of `parts`.
template <class T>
testing::AssertionResult fails_with(const T& outcome, StatusCode code, std::initializer_list<std::string_view> parts) {
  const Status status = status_of(outcome);
  if (status.code() != code) {
    return testing::AssertionFailure() << "expected " << status_code_name(code) << ", got " << status.to_string();
  }
  for (const std::string_view part : parts) {
    if (status.message().find(part) == std::string::npos) {
      return testing::AssertionFailure() << "'" << part << "' is not in: " << status.message();
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace dsv4rt::test

#define EXPECT_OK(outcome) EXPECT_TRUE(::dsv4rt::test::is_ok(outcome))
#define ASSERT_OK(outcome) ASSERT_TRUE(::dsv4rt::test::is_ok(outcome))
