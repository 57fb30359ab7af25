// Time marks as CUDA events of one stream.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/handles.h"
#include "backend/time_marks.h"

namespace dsv4rt::cuda {

// Events are kept and used again: marking allocates only beyond the most marks there ever were.
class EventMarks final : public TimeMarks {
 public:
  // Both outlive the object.
  EventMarks(const CudaDevice& device, cudaStream_t stream) : device_(device), stream_(stream) {}

  Status mark() override;
  Result<std::vector<double>> take() override;

 private:
  const CudaDevice& device_;
  cudaStream_t stream_;
  std::vector<Event> events_;
  std::size_t used_ = 0;
};

}  // namespace dsv4rt::cuda
