// Pinned staging for what the host sends with every step: kStepUploads slots used in turn, so that the
// host may prepare steps ahead of the device.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/cuda/device/handles.h"

namespace dsv4rt::cuda {

class StepUpload {
 public:
  StepUpload() = default;
  ~StepUpload();
  StepUpload(const StepUpload&) = delete;
  StepUpload& operator=(const StepUpload&) = delete;

  // Takes pinned memory for `slots` uploads of up to `bytes` bytes. Only at start.
  Status reserve(std::size_t bytes, int slots);

  // Copies the source into the next slot and enqueues its copy to `target`. Waits for the upload that
  // used the slot last; that is the only wait. kResourceExhausted beyond the reserved bytes.
  Status enqueue(void* target, const void* source, std::size_t bytes, cudaStream_t stream);

 private:
  void free_memory() noexcept;

  std::byte* memory_ = nullptr;
  std::size_t slot_bytes_ = 0;
  std::vector<Event> sent_;  // recorded after each slot's last copy
  std::size_t next_ = 0;
};

}  // namespace dsv4rt::cuda
