// Tensors in the caller's memory as a source of weights: nothing is copied.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "dsv4rt/memory_checkpoint.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

class MemoryTensors final : public TensorSource {
 public:
  // Refers to everything in `tensors`, which outlives the object, but looks at no tensor's data. kInvalidArgument
  // naming index, name and field: no name or one beyond kMaxTensorNameBytes, a name given twice, a dtype that
  // safetensors files do not have, more than kMaxTensorDims dimensions, other bytes than dtype and shape say, no data,
  // more than kMaxTensors; kUnsupported for device memory.
  static Result<MemoryTensors> create(std::span<const MemoryTensor> tensors);

  [[nodiscard]] std::string_view source_name() const noexcept override { return "tensors in memory"; }
  [[nodiscard]] std::size_t tensor_count() const noexcept override { return views_.size(); }
  [[nodiscard]] const TensorView& tensor(std::size_t index) const noexcept override { return views_[index]; }
  [[nodiscard]] Status read(std::span<const std::byte> data) const override {
    static_cast<void>(data);
    return {};
  }
  void drop(std::span<const std::byte> data) const noexcept override { static_cast<void>(data); }

 private:
  explicit MemoryTensors(std::vector<TensorView> views) : views_(std::move(views)) {}

  std::vector<TensorView> views_;  // ascending by name
};

}  // namespace dsv4rt
