// Where the tensors of a model come from: files, or memory of the caller.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "checkpoint/safetensors_header.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Named tensors, ascending by name. All members are const and may be called from several threads.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  // What stands for it in messages; not escaped.
  [[nodiscard]] virtual std::string_view source_name() const noexcept = 0;
  [[nodiscard]] virtual std::size_t tensor_count() const noexcept = 0;
  // index < tensor_count(). Its data must not be touched before read().
  [[nodiscard]] virtual const TensorView& tensor(std::size_t index) const noexcept = 0;
  // Makes the data of a tensor, or a part of it, readable. Bytes that are none of the source's are readable already.
  [[nodiscard]] virtual Status read(std::span<const std::byte> data) const = 0;
  // The source may give back the memory of these bytes; they must be read again before they are touched.
  virtual void drop(std::span<const std::byte> data) const noexcept = 0;

  // Null when there is no such tensor.
  [[nodiscard]] const TensorView* find_tensor(std::string_view name) const noexcept;

 protected:
  TensorSource() = default;
  TensorSource(const TensorSource&) = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(const TensorSource&) = default;
  TensorSource& operator=(TensorSource&&) = default;
};

}  // namespace dsv4rt
