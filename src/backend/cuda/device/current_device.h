// The calling thread's current device, for the length of a scope.
#pragma once

#include "backend/cuda/device/cuda_device.h"
#include "base/try.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// Makes a device current and, at the end of the scope, the caller's device again. A caller that has chosen none yet
// has device 0; where that is another one, the runtime then sets up its context for the calling thread.
class CurrentDevice {
 public:
  explicit CurrentDevice(const CudaDevice& device) : CurrentDevice(device.ordinal(), device.driver()) {}
  CurrentDevice(int ordinal, DeviceDriver& driver);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  // Whether the device is current.
  [[nodiscard]] const Status& status() const noexcept { return status_; }

 private:
  DeviceDriver& driver_;
  int callers_ = 0;
  bool changed_ = false;
  Status status_;
};

}  // namespace dsv4rt::cuda

// Makes `device` current to the end of the enclosing scope; returns from the enclosing function, which returns Status
// or Result, where that fails.
#define DSV4RT_ON_DEVICE(device)                                     \
  const ::dsv4rt::cuda::CurrentDevice dsv4rt_current_device(device); \
  DSV4RT_RETURN_IF_ERROR(dsv4rt_current_device.status())
