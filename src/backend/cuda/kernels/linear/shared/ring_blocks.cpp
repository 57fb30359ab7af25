#include "backend/cuda/kernels/linear/shared/ring_blocks.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/device/cuda_error.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Result<RingDevice> prepare_ring_kernel(const void* kernel) {
  int number = 0;
  RingDevice device;
  DSV4RT_CUDA_TRY(cudaGetDevice(&number));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&device.shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, number));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&device.reserved_bytes, cudaDevAttrReservedSharedMemoryPerBlock, number));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&device.sms, cudaDevAttrMultiProcessorCount, number));
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       device.shared_bytes - device.reserved_bytes));
  return device;
}

}  // namespace dsv4rt::cuda
