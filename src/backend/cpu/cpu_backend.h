// The CPU backend: reference and default. Always built.
#pragma once

#include <memory>

#include "backend/backend.h"

namespace dsv4rt {

struct CpuBackendOptions {
  int threads = 0;  // 0: as many as the machine offers
};

// Errors: kInvalidArgument for a thread count outside [0, 1024].
Result<std::unique_ptr<Backend>> create_cpu_backend(const CpuBackendOptions& options);

}  // namespace dsv4rt
