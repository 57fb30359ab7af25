#include "backend/cuda/device/step_upload.h"

#include <cstring>
#include <string>

#include "base/try.h"

namespace dsv4rt::cuda {

StepUpload::~StepUpload() {
  free_memory();
}

void StepUpload::free_memory() noexcept {
  static_cast<void>(cudaFreeHost(memory_));
  memory_ = nullptr;
  slot_bytes_ = 0;
  sent_.clear();
}

Status StepUpload::reserve(std::size_t bytes, int slots) {
  free_memory();
  void* memory = nullptr;
  DSV4RT_CUDA_TRY(cudaHostAlloc(&memory, bytes * static_cast<std::size_t>(slots), cudaHostAllocDefault));
  memory_ = static_cast<std::byte*>(memory);
  slot_bytes_ = bytes;
  for (int slot = 0; slot < slots; ++slot) {
    DSV4RT_ASSIGN_OR_RETURN(Event event, create_event(false));
    sent_.push_back(std::move(event));
  }
  return {};
}

Status StepUpload::enqueue(void* target, const void* source, std::size_t bytes, cudaStream_t stream) {
  if (bytes > slot_bytes_) {
    return {StatusCode::kResourceExhausted,
            "step upload of " + std::to_string(bytes) + " B; " + std::to_string(slot_bytes_) + " B were reserved"};
  }
  const Event& sent = sent_[next_];
  std::byte* slot = memory_ + next_ * slot_bytes_;
  DSV4RT_CUDA_TRY(cudaEventSynchronize(sent.get()));  // returns at once for an event that was never recorded
  std::memcpy(slot, source, bytes);
  DSV4RT_CUDA_TRY(cudaMemcpyAsync(target, slot, bytes, cudaMemcpyHostToDevice, stream));
  DSV4RT_CUDA_TRY(cudaEventRecord(sent.get(), stream));
  next_ = (next_ + 1) % sent_.size();
  return {};
}

}  // namespace dsv4rt::cuda
