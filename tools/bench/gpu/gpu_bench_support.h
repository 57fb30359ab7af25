// Device memory and steps of benchmarks that call the CUDA operations directly.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <vector>

#include "dsv4rt/status.h"
#include "graph_timing.h"
#include "step/step_metadata.h"

namespace dsv4rt::bench {

inline void require_ok(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  std::exit(1);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes) { require_cuda(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~DeviceMemory() { static_cast<void>(cudaFree(data_)); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

template <class T>
class DeviceCopy {
 public:
  explicit DeviceCopy(const std::vector<T>& values) : DeviceCopy(values.data(), values.size()) {}
  DeviceCopy(const T* values, std::size_t count) : memory_(count * sizeof(T) + 1) {
    copy_to_device(memory_.data(), values, count * sizeof(T));
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()); }

 private:
  DeviceMemory memory_;
};

// A step whose arrays lie on the device, as the engine uploads them: in one buffer.
class DeviceStep {
 public:
  DeviceStep(const StepView& host, int ratio_classes) {
    const StepHeader& counts = host.counts;
    const auto tokens = static_cast<std::size_t>(counts.tokens);
    const auto sequences = static_cast<std::size_t>(counts.sequences);
    position_ = copy(host.token_position, tokens);
    sequence_ = copy(host.token_sequence, tokens);
    slot_ = copy(host.sequence_slot, sequences);
    start_ = copy(host.sequence_start, sequences);
    first_ = copy(host.sequence_first_token, sequences + 1);
    view_.counts = counts;
    view_.token_position = position_;
    view_.token_sequence = sequence_;
    view_.sequence_slot = slot_;
    view_.sequence_start = start_;
    view_.sequence_first_token = first_;
    for (int c = 0; c < ratio_classes; ++c) {
      view_.valid_mask[c] = copy(host.valid_mask[c], tokens);
      view_.row_index[c] = copy(host.row_index[c], tokens);
    }
  }
  ~DeviceStep() {
    for (void* array : arrays_) static_cast<void>(cudaFree(array));
  }
  DeviceStep(const DeviceStep&) = delete;
  DeviceStep& operator=(const DeviceStep&) = delete;
  [[nodiscard]] const StepView& view() const { return view_; }

 private:
  template <class T>
  const T* copy(const T* values, std::size_t count) {
    void* data = nullptr;
    require_cuda(cudaMalloc(&data, count * sizeof(T) + 1), "cudaMalloc");
    copy_to_device(data, values, count * sizeof(T));
    arrays_.push_back(data);
    return static_cast<const T*>(data);
  }

  std::vector<void*> arrays_;
  const std::int32_t *position_ = nullptr, *sequence_ = nullptr, *slot_ = nullptr, *start_ = nullptr, *first_ = nullptr;
  StepView view_;
};

}  // namespace dsv4rt::bench
