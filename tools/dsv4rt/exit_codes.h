// Exit codes of the command line; documented in docs/cli.md.
#pragma once

#include "dsv4rt/status.h"

namespace dsv4rt::cli {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,     // device fault, defect, a result that cannot be written, or what is none of the below
  kExitUsage = 2,      // flags and arguments, also a file to write that exists
  kExitBadInput = 3,   // a file is missing, malformed or not supported
  kExitMismatch = 4,   // run --check or --prefix-cache found a difference
  kExitResources = 5,  // memory, blocks, slots or descriptors
};

inline int exit_code_for(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return kExitOk;
    case StatusCode::kInvalidArgument:
      return kExitUsage;
    case StatusCode::kBadInput:
    case StatusCode::kNotFound:
    case StatusCode::kUnsupported:
      return kExitBadInput;
    case StatusCode::kMismatch:
      return kExitMismatch;
    case StatusCode::kResourceExhausted:
      return kExitResources;
    default:
      return kExitFailed;
  }
}

}  // namespace dsv4rt::cli
