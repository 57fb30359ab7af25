// Which GPUs there are and whether this build can use them. Nothing of it needs a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt {

struct CudaDeviceReport {
  int ordinal = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t free_bytes = 0;  // at the moment; 0 when the device is not usable
  int multiprocessors = 0;
  std::int64_t l2_bytes = 0;
  bool has_sm90a = false;  // whether this build's kernels for Hopper run here; see DeviceFacts
  // Encodings of weights that CudaBackendOptions::deterministic = false gives to cuBLASLt here: "bf16", "fp8", "nvfp4".
  // Empty without that library, or when the device is not usable.
  std::vector<std::string> cublaslt_weights;
  Status usable;  // or why not
};

struct CudaSystem {
  std::string architectures;     // that the kernels were compiled for, as CMake names them: "90a-real 90-virtual"
  std::string toolkit_version;   // "13.0": headers and runtime
  std::string driver_version;    // the highest CUDA version the driver serves; empty without a driver
  std::string cublaslt_version;  // of the library that CudaBackendOptions::deterministic = false needs: "13.1.0"
  Status cublaslt_found;         // or why there is none
  Status devices_found;          // or why there are none
  std::vector<CudaDeviceReport> devices;
};

CudaSystem inspect_cuda();

// Whether kernels of this project may run on such a device; kUnsupported says what is needed.
Status check_compute_capability(const std::string& name, int major, int minor);

}  // namespace dsv4rt
