// Refusals of arguments that break the contract of an operation.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt {

// "<operation>: <field> = <value>; accepted: <accepted>"
inline Status refused(StatusCode code, const char* operation, const char* field, std::int64_t value,
                      const char* accepted) {
  return {code, std::string(operation) + ": " + field + " = " + std::to_string(value) + "; accepted: " + accepted};
}

// The caller broke the contract of ops.h.
inline Status require(bool holds, const char* operation, const char* field, std::int64_t value, const char* accepted) {
  return holds ? Status{} : refused(StatusCode::kInvalidArgument, operation, field, value, accepted);
}

inline Status require_pointer(const void* pointer, const char* operation, const char* field) {
  if (pointer != nullptr) return {};
  return {StatusCode::kInvalidArgument, std::string(operation) + ": " + field + " is null"};
}

}  // namespace dsv4rt
