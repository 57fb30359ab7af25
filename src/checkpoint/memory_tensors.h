// Tensors in the caller's memory as a source of weights. Those of the host are read where they are, those of a device
// are copied to the host as far as they are read, and dropped there after that.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/reserved_bytes.h"
#include "checkpoint/tensor_source.h"
#include "dsv4rt/memory_checkpoint.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

class MemoryTensors final : public TensorSource {
 public:
  // Refers to everything in `tensors`, which outlives the object, but looks at no tensor's data. kInvalidArgument
  // naming index, name and field: no name or one beyond kMaxTensorNameBytes, a name given twice, a dtype that
  // safetensors files do not have, more than kMaxTensorDims dimensions, other bytes than dtype and shape say, no data,
  // more than kMaxTensors; kUnsupported for device memory without `fetch`.
  // fetch(host, device, bytes) copies device memory and may be called from several threads.
  using Fetch = std::function<Status(void* host, const void* device, std::size_t bytes)>;
  static Result<MemoryTensors> create(std::span<const MemoryTensor> tensors, Fetch fetch = {});

  [[nodiscard]] std::string_view source_name() const noexcept override { return "tensors in memory"; }
  [[nodiscard]] std::size_t tensor_count() const noexcept override { return views_.size(); }
  [[nodiscard]] const TensorView& tensor(std::size_t index) const noexcept override { return views_[index]; }
  [[nodiscard]] Status read(std::span<const std::byte> data) const override;
  void drop(std::span<const std::byte> data) const noexcept override;

 private:
  // A tensor of a device and where its bytes come to lie.
  struct Staged {
    const std::byte* device = nullptr;
    ReservedBytes host;
  };
  explicit MemoryTensors(Fetch fetch) : fetch_(std::move(fetch)) {}
  // Whose bytes these are; null for a tensor of the host.
  [[nodiscard]] const Staged* staged_at(const std::byte* data) const noexcept;

  Fetch fetch_;
  std::vector<TensorView> views_;  // ascending by name
  std::vector<Staged> staged_;     // ascending by host address
};

}  // namespace dsv4rt
