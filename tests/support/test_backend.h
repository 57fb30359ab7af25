// The backend a test program runs on. Sources are compiled once: a program that links
// tests/gpu/support/cuda_test_backend.cpp runs them on the GPU, every other one on the CPU (cpu_test_backend.cpp).
#pragma once

#include <memory>
#include <string_view>

#include "backend/cpu/cpu_backend.h"

namespace dsv4rt::test {

// "cpu" or "cuda", as EngineOptions::backend takes it.
extern const std::string_view kTestBackend;

// A backend of one thread on the CPU, of device 0 on a GPU.
Result<std::unique_ptr<Backend>> create_test_backend();

// Waits for what is enqueued on a stream of that backend (Backend::native_stream).
void settle_test_stream(void* stream);

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

}  // namespace dsv4rt::test
