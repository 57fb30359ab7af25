// How a fuzz target reports that a promise is broken: the program ends, and the fuzzer keeps the input.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt::fuzz {

inline void expect(bool promise, const std::string& what) {
  if (promise) return;
  std::fprintf(stderr, "broken: %s\n", what.c_str());
  std::abort();
}

// A refusal has a text, and is none of the codes that mean a defect.
inline void expect_typed(const Status& status) {
  if (status.ok()) return;
  expect(!status.message().empty(), "a failure without a text");
  expect(status.code() != StatusCode::kInternal && status.code() != StatusCode::kFaulted, status.to_string());
}

}  // namespace dsv4rt::fuzz
