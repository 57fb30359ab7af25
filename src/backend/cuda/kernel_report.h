// Tells which kernels serve a model on a device; asks the functions that decide it when the operations run.
#pragma once

#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/kernel_use.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Reports the kernels of a device of this machine. Errors: as create_cuda_backend; kUnsupported for layers that no
// schedule has.
Result<std::vector<KernelUse>> cuda_kernel_uses(int device, const KernelQuestion& question);

namespace cuda {

// The same for a device that is known and current.
Result<std::vector<KernelUse>> kernel_uses(const CudaDevice& device, const KernelQuestion& question);

}  // namespace cuda
}  // namespace dsv4rt
