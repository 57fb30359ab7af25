// The backend a test program runs on. The same sources are built for each: a target says "cuda" with the
// definition DSV4RT_TEST_BACKEND.
#pragma once

#include <memory>
#include <string_view>

#include "backend/cpu/cpu_backend.h"
#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_backend.h"
#endif

#ifndef DSV4RT_TEST_BACKEND
#define DSV4RT_TEST_BACKEND "cpu"
#endif

namespace dsv4rt::test {

inline constexpr std::string_view kTestBackend = DSV4RT_TEST_BACKEND;

// Scratch that single operations may take in tests; an engine plans its own.
inline constexpr std::size_t kTestScratchBytes = std::size_t{64} << 20;
// On the CPU every thread has scores of its own. Pages that nobody touches cost nothing.
inline constexpr std::size_t kCpuTestScratchBytes = std::size_t{1} << 30;

inline Result<std::unique_ptr<Backend>> with_test_scratch(Result<std::unique_ptr<Backend>> backend, std::size_t bytes) {
  if (!backend.ok()) return backend;
  if (const Status status = (*backend)->reserve_scratch(bytes); !status.ok()) return status;
  return backend;
}

// A CPU backend whose operations may be called without an engine.
inline Result<std::unique_ptr<Backend>> create_cpu_test_backend(const CpuBackendOptions& options = {}) {
  return with_test_scratch(create_cpu_backend(options), kCpuTestScratchBytes);
}

// A backend of one thread on the CPU, of device 0 on a GPU.
inline Result<std::unique_ptr<Backend>> create_test_backend() {
#if defined(DSV4RT_HAVE_CUDA)
  if constexpr (kTestBackend == "cuda") return with_test_scratch(create_cuda_backend({.device = 0}), kTestScratchBytes);
#endif
  return create_cpu_test_backend({.threads = 1, .max_isa = {}, .on_warning = {}});
}

}  // namespace dsv4rt::test
