#include "checkpoint/memory_tensors.h"

#include <algorithm>
#include <new>
#include <optional>

#include "base/message_text.h"
#include "base/system_failure.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

Status refused(std::size_t index, const MemoryTensor& tensor, const std::string& why,
               StatusCode code = StatusCode::kInvalidArgument) {
  return {code, "tensors[" + std::to_string(index) + "] " + quote(tensor.name) + ": " + why};
}

Result<TensorView> view_of(std::size_t index, const MemoryTensor& tensor) {
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    return refused(index, tensor,
                   "a name of " + std::to_string(tensor.name.size()) + " bytes; accepted: 1 to " +
                       std::to_string(kMaxTensorNameBytes));
  }
  const std::optional<TensorDtype> dtype = tensor_dtype_from_name(tensor.dtype);
  if (!dtype) return refused(index, tensor, "dtype " + quote(tensor.dtype) + "; accepted: " + tensor_dtype_names());
  if (tensor.shape.size() > kMaxTensorDims) {
    return refused(
        index, tensor,
        std::to_string(tensor.shape.size()) + " dimensions; accepted: up to " + std::to_string(kMaxTensorDims));
  }
  if (tensor.memory == TensorMemory::kDevice) {
    return refused(index, tensor, "is in device memory; accepted: host memory", StatusCode::kUnsupported);
  }
  if (tensor.memory != TensorMemory::kHost) {
    return refused(index, tensor,
                   "memory " + std::to_string(static_cast<int>(tensor.memory)) + "; accepted: 0 (host), 1 (device)");
  }
  const std::optional<std::uint64_t> bytes = tensor_bytes(*dtype, tensor.shape);
  const std::string described = std::string(tensor_dtype_name(*dtype)) + " " + shape_text(tensor.shape);
  if (!bytes) return refused(index, tensor, "there is no tensor " + described);
  if (*bytes != tensor.data.size()) {
    return refused(index, tensor,
                   std::to_string(tensor.data.size()) + " bytes; " + described + " has " + std::to_string(*bytes));
  }
  if (tensor.data.data() == nullptr && *bytes > 0) return refused(index, tensor, "its data is null");
  return TensorView{.name = tensor.name, .dtype = *dtype, .shape = tensor.shape, .data = tensor.data};
}

}  // namespace

Result<MemoryTensors> MemoryTensors::create(std::span<const MemoryTensor> tensors) {
  try {
    if (tensors.size() > kMaxTensors) {
      return Status{StatusCode::kInvalidArgument, "tensors: " + std::to_string(tensors.size()) +
                                                      " of them; accepted: up to " + std::to_string(kMaxTensors)};
    }
    std::vector<TensorView> views;
    views.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      DSV4RT_ASSIGN_OR_RETURN(const TensorView view, view_of(i, tensors[i]));
      views.push_back(view);
    }
    std::sort(views.begin(), views.end(), [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(views.begin(), views.end(),
                                          [](const TensorView& a, const TensorView& b) { return a.name == b.name; });
    if (twice != views.end()) {
      return Status{StatusCode::kInvalidArgument, "tensors: " + quote(twice->name) + " is given twice"};
    }
    return MemoryTensors(std::move(views));
  } catch (const std::bad_alloc&) {
    return out_of_memory("tensors in memory", "listing them");
  }
}

}  // namespace dsv4rt
