// Addresses of the block's own shared memory as instructions take them.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

}  // namespace dsv4rt::cuda
