#include "backend/cuda/device/event_marks.h"

#include "backend/cuda/device/current_device.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status EventMarks::mark() {
  DSV4RT_ON_DEVICE(device_);
  if (used_ == events_.size()) {
    DSV4RT_ASSIGN_OR_RETURN(Event event, create_event(true));
    events_.push_back(std::move(event));
  }
  DSV4RT_CUDA_TRY(cudaEventRecord(events_[used_].get(), stream_));
  ++used_;
  return {};
}

Result<std::vector<double>> EventMarks::take() {
  DSV4RT_ON_DEVICE(device_);
  std::vector<double> times;
  const std::size_t marks = used_;
  used_ = 0;
  if (marks > 0) DSV4RT_CUDA_TRY(cudaEventSynchronize(events_[marks - 1].get()));
  for (std::size_t i = 0; i < marks; ++i) {
    float milliseconds = 0;
    DSV4RT_CUDA_TRY(cudaEventElapsedTime(&milliseconds, events_[0].get(), events_[i].get()));
    times.push_back(1e3 * static_cast<double>(milliseconds));
  }
  return times;
}

}  // namespace dsv4rt::cuda
