// Inputs of a kernel that come while it waits for the kernels in front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu/support/gpu.h"
#include "gpu/support/late_copies.h"

namespace dsv4rt::test {

inline constexpr std::int64_t kLateNanoseconds = 200'000;  // the host takes less until the next kernel is launched

// Arrays on the device of which some bytes come late.
class LateBytes {
 public:
  explicit LateBytes(Backend& backend) : backend_(backend) {}

  // `bytes` at `to` on the device: first as `early`, late as `late`.
  void add(std::byte* to, const std::byte* early, const std::byte* late, std::int64_t bytes) {
    const std::span now(early, static_cast<std::size_t>(bytes));
    EXPECT_OK(backend_.upload(to, now.data(), now.size()));
    values_.emplace_back(backend_, std::span(late, now.size()));
    copies_.push_back({to, values_.back().data(), bytes});
  }
  // The same of an array whose values are `late` in the end.
  template <class T>
  void add_array(const T* device, const std::vector<T>& early, const std::vector<T>& late) {
    add(reinterpret_cast<std::byte*>(const_cast<T*>(device)), reinterpret_cast<const std::byte*>(early.data()),
        reinterpret_cast<const std::byte*>(late.data()), static_cast<std::int64_t>(late.size() * sizeof(T)));
  }
  // Row `row` of a block: as another row of the bank, and late as it is in `block`, which lies at `device`.
  void add_row(const BlockShape& shape, std::byte* device, const std::byte* block, const std::byte* other,
               std::int64_t row) {
    add(device + shape.data_offset(row), other, block + shape.data_offset(row), shape.data_bytes);
    if (shape.scale_bytes == 0) return;
    add(device + shape.scale_offset(row), other + shape.data_bytes, block + shape.scale_offset(row), shape.scale_bytes);
  }
  // Copies `bytes` at `from`, as they are then, behind what comes late.
  void look(void* to, const void* from, std::size_t bytes) {
    copies_.push_back({to, from, static_cast<std::int64_t>(bytes)});
  }
  // Puts the kernel in front of the next one.
  void launch() {
    list_ = DeviceArray<LateCopy>(backend_, copies_);
    EXPECT_OK(launch_late_copies(list_.data(), static_cast<std::int32_t>(copies_.size()), kLateNanoseconds,
                                 static_cast<cudaStream_t>(backend_.native_stream())));
  }

 private:
  Backend& backend_;
  std::vector<DeviceArray<std::byte>> values_;
  std::vector<LateCopy> copies_;
  DeviceArray<LateCopy> list_;
};

}  // namespace dsv4rt::test
