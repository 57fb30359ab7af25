#include <cstddef>

#include "backend/cuda/kernels/common/copy_bytes.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "gpu/support/late_copies.h"

namespace dsv4rt::test {
namespace {

constexpr unsigned kThreads = 128;

__device__ std::int64_t nanoseconds_now() {
  std::int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;\n" : "=l"(now)::"memory");
  return now;
}

// One block.
__global__ void __launch_bounds__(kThreads)
    late_copies_kernel(const LateCopy* copies, std::int32_t count, std::int64_t nanoseconds) {
  cuda::allow_dependents();
  cuda::wait_for_predecessors();
  const std::int64_t begin = nanoseconds_now();
  while (nanoseconds_now() - begin < nanoseconds) __nanosleep(1000);
  for (std::int32_t i = 0; i < count; ++i) {
    cuda::copy_bytes(static_cast<std::byte*>(copies[i].to), static_cast<const std::byte*>(copies[i].from),
                     copies[i].bytes, static_cast<std::int64_t>(threadIdx.x), std::int64_t{kThreads});
  }
}

}  // namespace

Status launch_late_copies(const LateCopy* copies, std::int32_t count, std::int64_t nanoseconds, cudaStream_t stream) {
  return cuda::launch_pdl(late_copies_kernel, {.threads = kThreads}, stream, copies, count, nanoseconds);
}

}  // namespace dsv4rt::test
