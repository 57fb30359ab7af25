#include "dsv4rt/status.h"

namespace dsv4rt {

std::string_view status_code_name(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kBadInput:
      return "bad input";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kFailedPrecondition:
      return "failed precondition";
    case StatusCode::kStaleHandle:
      return "stale handle";
    case StatusCode::kMismatch:
      return "mismatch";
    case StatusCode::kFaulted:
      return "faulted";
    case StatusCode::kInternal:
      return "internal";
    case StatusCode::kBackendLost:
      return "backend lost";
  }
  return "unknown";
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(status_code_name(code_)) + ": " + message_;
}

}  // namespace dsv4rt
