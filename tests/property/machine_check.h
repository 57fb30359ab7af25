// What the machines expect of calls.
#pragma once

#include <string>
#include <utility>

#include "dsv4rt/status.h"
#include "operation.h"

namespace dsv4rt::property {

inline void expect(bool condition, const std::string& what) {
  if (!condition) throw Divergence(what);
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) throw Divergence("must not fail: " + result.status().to_string());
  return std::move(*result);
}

inline void expect_code(const Status& status, StatusCode code, const char* operation) {
  if (status.code() == code) return;
  throw Divergence(std::string(operation) + ": expected \"" + std::string(status_code_name(code)) +
                   "\", manager says \"" + status.to_string() + "\"");
}

}  // namespace dsv4rt::property
