// Tells which machine code of this build a device runs.
#pragma once

#include "backend/cuda/device/device_driver.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Whether the build holds machine code, or PTX that the driver can compile, for a device. kUnsupported naming the
// compiled architectures when it has none. The calling thread's current device stays as it was.
Status check_kernel_image(int device);

// Whether the current device runs kernels of this build as code for sm_90a. The build may hold several codes that fit a
// device, so the one that the driver has chosen says it: for each architecture the probe is compiled with other bounds
// of its launch. kInternal where the driver reports neither.
Result<bool> runs_sm90a_code(DeviceDriver& driver);
const void* sm90a_probe() noexcept;
// Threads that a block of the probe may have: in code for sm_90a, and in other code.
inline constexpr int kSm90aProbeThreads = 512;
inline constexpr int kProbeThreads = 128;

// What the kernels were compiled for, as CMake names it.
const char* compiled_architectures();

}  // namespace dsv4rt::cuda
