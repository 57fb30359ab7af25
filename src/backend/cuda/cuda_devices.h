// Tells which GPUs there are and whether this build can use them. Nothing of it needs a GPU.
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
  std::int64_t free_bytes = 0;  // free memory when it was asked; 0 when the device is not usable
  int multiprocessors = 0;
  std::int64_t l2_bytes = 0;
  bool has_sm90a = false;           // whether this build's kernels for Hopper run here; see DeviceFacts
  bool has_nvfp4_products = false;  // whether cuBLASLt is there and has them: LinearPrecision::kNvfp4
  Status usable;                    // OK, or why the device is not usable
};

struct CudaSystem {
  std::string architectures;    // architectures of the kernels as CMake names them: "90a-real 90-virtual"
  std::string toolkit_version;  // "13.0": headers and runtime
  std::string driver_version;   // the highest CUDA version the driver serves; empty without a driver
  // Version of the library that LinearPrecision::kNvfp4 needs: "13.1.0".
  std::string cublaslt_version;
  Status cublaslt_found;  // OK, or why there is no such library
  Status devices_found;   // OK, or why there are no devices
  std::vector<CudaDeviceReport> devices;
};

CudaSystem inspect_cuda();

// Whether kernels of this project may run on such a device; kUnsupported says what is needed.
Status check_compute_capability(const std::string& name, int major, int minor);

}  // namespace dsv4rt
