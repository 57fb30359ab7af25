// The CPU backend: reference and default. Always built.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "backend/backend.h"

namespace dsv4rt {

inline constexpr std::int32_t kMaxCpuThreads = 1024;

struct CpuBackendOptions {
  int threads = 0;  // 0: as many as the process may use
  // Highest instruction set to use: "portable", "avx2" or "avx512"; empty: the best of the processor.
  // Linears give the same bits at every level.
  std::string max_isa;
  // Told once if fewer threads could be started than asked for: the work takes longer, its results are the same.
  std::function<void(std::string_view)> on_warning;
};

// Errors: kInvalidArgument for a thread count outside [0, 1024] or an unknown instruction set;
// kUnsupported for one that the processor lacks; kResourceExhausted.
Result<std::unique_ptr<Backend>> create_cpu_backend(const CpuBackendOptions& options);

}  // namespace dsv4rt
