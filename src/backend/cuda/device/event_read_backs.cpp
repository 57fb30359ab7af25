#include "backend/cuda/device/event_read_backs.h"

#include <utility>

#include "backend/cuda/device/current_device.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Result<std::unique_ptr<ReadBacks>> EventReadBacks::create(const CudaDevice& device, cudaStream_t stream,
                                                          std::span<std::byte> memory, std::size_t places) {
  std::unique_ptr<EventReadBacks> reads(new EventReadBacks(device, stream, memory));
  void* pinned = nullptr;
  DSV4RT_CUDA_TRY(cudaHostAlloc(&pinned, memory.size() * places, cudaHostAllocDefault));
  reads->pinned_ = static_cast<std::byte*>(pinned);
  for (std::size_t i = 0; i < places; ++i) {
    DSV4RT_ASSIGN_OR_RETURN(Event copied, create_event(false));
    reads->places_.push_back({.copied = std::move(copied)});
  }
  return std::unique_ptr<ReadBacks>(std::move(reads));
}

// Copies on their way end first: the stream outlives what is enqueued on it, the memory would not.
EventReadBacks::~EventReadBacks() {
  const CurrentDevice current(device_);
  static_cast<void>(cudaStreamSynchronize(stream_));
  static_cast<void>(cudaFreeHost(pinned_));
}

Status EventReadBacks::take(std::size_t place) {
  DSV4RT_ON_DEVICE(device_);
  std::byte* target = pinned_ + place * memory_.size();
  DSV4RT_CUDA_TRY(cudaMemcpyAsync(target, memory_.data(), memory_.size(), cudaMemcpyDeviceToHost, stream_));
  DSV4RT_CUDA_TRY(cudaMemsetAsync(memory_.data(), 0, memory_.size(), stream_));
  DSV4RT_CUDA_TRY(cudaEventRecord(places_[place].copied.get(), stream_));
  places_[place].used = true;
  return {};
}

Result<std::span<const std::byte>> EventReadBacks::taken(std::size_t place) {
  if (!places_[place].used) return std::span<const std::byte>();
  DSV4RT_ON_DEVICE(device_);
  const cudaError_t copied = cudaEventQuery(places_[place].copied.get());
  if (under_way(copied)) return std::span<const std::byte>();
  DSV4RT_CUDA_TRY(copied);
  return std::span<const std::byte>(pinned_ + place * memory_.size(), memory_.size());
}

Result<std::span<const std::byte>> EventReadBacks::wait(std::size_t place) {
  if (!places_[place].used) return std::span<const std::byte>();
  DSV4RT_ON_DEVICE(device_);
  DSV4RT_CUDA_TRY(cudaEventSynchronize(places_[place].copied.get()));
  return std::span<const std::byte>(pinned_ + place * memory_.size(), memory_.size());
}

}  // namespace dsv4rt::cuda
