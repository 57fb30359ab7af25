// Copies of many short runs of device memory in few launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct PartCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
};

// Runs at any address and of any length, which do not overlap. Enqueued on the stream; the device is current.
Status launch_copy_parts(std::span<const PartCopy> copies, cudaStream_t stream);

}  // namespace dsv4rt::cuda
