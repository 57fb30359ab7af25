#include "backend/cuda/device/current_device.h"

#include "backend/cuda/device/cuda_error.h"

namespace dsv4rt::cuda {

CurrentDevice::CurrentDevice(int ordinal, DeviceDriver& driver) : driver_(driver) {
  status_ = DSV4RT_CUDA_STATUS(driver_.get_device(callers_));
  if (!status_.ok() || callers_ == ordinal) return;
  status_ = DSV4RT_CUDA_STATUS(driver_.set_device(ordinal));
  changed_ = status_.ok();
}

CurrentDevice::~CurrentDevice() {
  // The caller's device was current before; what it now fails with it has failed with already.
  if (changed_) static_cast<void>(driver_.set_device(callers_));
}

}  // namespace dsv4rt::cuda
