// Whether the build holds machine code, or PTX that the driver can compile, for a device.
#pragma once

#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Makes `device` the calling thread's. kUnsupported naming the compiled architectures when the device has no code.
Status check_kernel_image(int device);

// What the kernels were compiled for, as CMake names it.
const char* compiled_architectures();

}  // namespace dsv4rt::cuda
