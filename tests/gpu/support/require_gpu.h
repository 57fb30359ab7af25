// What a GPU test does where there are too few GPUs: it is reported as not run, with the reason. Where
// DSV4RT_REQUIRE_GPU says how many GPUs a machine must have (scripts/gpu/run.sh sets it), it fails instead: a backend
// that does not start must not look like a machine without a GPU.
#pragma once

#include <cstdlib>
#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt::test {

// ctest takes a test that prints this for not run (tests/gpu/CMakeLists.txt).
inline constexpr const char* kNotRun = "not run: this test needs ";

// GPUs that this machine must have; 0 unless DSV4RT_REQUIRE_GPU says otherwise.
inline int required_gpus() {
  const char* text = std::getenv("DSV4RT_REQUIRE_GPU");
  return text == nullptr ? 0 : std::atoi(text);
}

// Whether tests that need so many GPUs may be left out after `found`, the failure to create a backend: there is no
// GPU that this build can use, and none is required. Any other failure is the backend's own.
inline bool may_be_left_out(const Status& found, int needed_gpus) {
  return found.code() == StatusCode::kUnsupported && needed_gpus > required_gpus();
}

inline std::string not_run(int needed_gpus, const std::string& reason) {
  return kNotRun + std::to_string(needed_gpus) + " CUDA device(s): " + reason;
}

}  // namespace dsv4rt::test
