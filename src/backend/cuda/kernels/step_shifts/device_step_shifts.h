// StepShifts in device memory.
#pragma once

#include <array>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "backend/cuda/device/cuda_device.h"
#include "backend/step_shifts.h"

namespace dsv4rt::cuda {

class DeviceStepShifts final : public StepShifts {
 public:
  // `rejected`, a number for every slot, is device memory that outlives the object, as device and stream do.
  DeviceStepShifts(const CudaDevice& device, cudaStream_t stream, std::span<std::int32_t> rejected,
                   const StepShiftLimits& limits);

  Status note(const StepView& step, const std::int32_t* accepted) override;
  Status shift(std::byte* metadata, const StepOffsets& offsets, const StepHeader& counts) override;

 private:
  const CudaDevice& device_;
  cudaStream_t stream_;
  std::span<std::int32_t> rejected_;
  std::int32_t most_rejected_;
  std::array<std::int32_t, kMaxRatioClasses> ratios_{};  // 0: no such class
};

}  // namespace dsv4rt::cuda
