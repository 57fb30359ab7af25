// ReadBacks through pinned memory: an event behind each copy tells whether it has run.
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/handles.h"
#include "backend/read_backs.h"

namespace dsv4rt::cuda {

class EventReadBacks final : public ReadBacks {
 public:
  // Device, which is current, and stream outlive the object.
  static Result<std::unique_ptr<ReadBacks>> create(const CudaDevice& device, cudaStream_t stream,
                                                   std::span<std::byte> memory, std::size_t places);
  ~EventReadBacks() override;

  Status take(std::size_t place) override;
  Result<std::span<const std::byte>> taken(std::size_t place) override;
  Result<std::span<const std::byte>> wait(std::size_t place) override;

 private:
  EventReadBacks(const CudaDevice& device, cudaStream_t stream, std::span<std::byte> memory)
      : device_(device), stream_(stream), memory_(memory) {}

  const CudaDevice& device_;
  cudaStream_t stream_;
  std::span<std::byte> memory_;
  std::byte* pinned_ = nullptr;  // [places][memory_.size()]
  struct Place {
    Event copied;
    bool used = false;
  };
  std::vector<Place> places_;
};

}  // namespace dsv4rt::cuda
