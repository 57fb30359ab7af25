// A kernel in front of the one under test that lets it start, and brings its inputs late.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "dsv4rt/status.h"

namespace dsv4rt::test {

struct LateCopy {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t bytes = 0;
};

// The next kernel of the stream may start at once; so many nanoseconds later come the copies, which lie in device
// memory.
Status launch_late_copies(const LateCopy* copies, std::int32_t count, std::int64_t nanoseconds, cudaStream_t stream);

}  // namespace dsv4rt::test
