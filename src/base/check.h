// Checks for programming errors: promises that only a defect of the library can break.
//
// Expected failures are Status values. A failed check throws CheckFailure; the C ABI turns it into
// StatusCode::kInternal.
#pragma once

#include <stdexcept>
#include <string>

namespace dsv4rt {

class CheckFailure : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void fail_check(const char* condition, const char* file, int line);

}  // namespace dsv4rt

// Always on: cheap conditions only.
#define DSV4RT_CHECK(condition) \
  (static_cast<bool>(condition) ? static_cast<void>(0) : ::dsv4rt::fail_check(#condition, __FILE__, __LINE__))
