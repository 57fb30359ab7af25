// Owners of CUDA runtime objects. Each is movable and destroys what it holds.
#pragma once

#include <cuda_runtime_api.h>
#include <utility>

#include "backend/cuda/device/cuda_error.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

template <class Handle, cudaError_t (*Destroy)(Handle)>
class UniqueHandle {
 public:
  UniqueHandle() = default;
  explicit UniqueHandle(Handle handle) : handle_(handle) {}
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  ~UniqueHandle() {
    // Destruction after a device fault fails too; the fault has been reported where it arose.
    if (handle_ != nullptr) static_cast<void>(Destroy(handle_));
  }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
};

using Stream = UniqueHandle<cudaStream_t, cudaStreamDestroy>;
using Event = UniqueHandle<cudaEvent_t, cudaEventDestroy>;
using Graph = UniqueHandle<cudaGraph_t, cudaGraphDestroy>;
using GraphExec = UniqueHandle<cudaGraphExec_t, cudaGraphExecDestroy>;

// A stream that does not synchronize with the legacy default stream.
inline Result<Stream> create_stream() {
  cudaStream_t stream = nullptr;
  DSV4RT_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

// The same; its work comes before that of other streams of the device.
inline Result<Stream> create_first_stream() {
  int least = 0;
  int greatest = 0;
  DSV4RT_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  DSV4RT_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return Stream(stream);
}

// timing: whether elapsed times may be asked; events without it are cheaper.
inline Result<Event> create_event(bool timing) {
  cudaEvent_t event = nullptr;
  DSV4RT_CUDA_TRY(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
  return Event(event);
}

}  // namespace dsv4rt::cuda
