#include "checkpoint/memory_tensors.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include "base/message_text.h"
#include "base/system_failure.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

Status refused(std::size_t index, const MemoryTensor& tensor, const std::string& why,
               StatusCode code = StatusCode::kInvalidArgument) {
  return {code, "tensors[" + std::to_string(index) + "] " + quote(tensor.name) + ": " + why};
}

Result<TensorView> view_of(std::size_t index, const MemoryTensor& tensor, bool devices) {
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
  if (tensor.memory == TensorMemory::kDevice && !devices) {
    return refused(index, tensor, "is in device memory; accepted with backend cpu: host memory",
                   StatusCode::kUnsupported);
  }
  if (tensor.memory != TensorMemory::kHost && tensor.memory != TensorMemory::kDevice) {
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

Result<MemoryTensors> MemoryTensors::create(std::span<const MemoryTensor> tensors, Fetch fetch) {
  try {
    if (tensors.size() > kMaxTensors) {
      return Status{StatusCode::kInvalidArgument, "tensors: " + std::to_string(tensors.size()) +
                                                      " of them; accepted: up to " + std::to_string(kMaxTensors)};
    }
    MemoryTensors source(std::move(fetch));
    std::vector<TensorView>& views = source.views_;
    views.reserve(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      DSV4RT_ASSIGN_OR_RETURN(TensorView view, view_of(i, tensors[i], static_cast<bool>(source.fetch_)));
      if (tensors[i].memory == TensorMemory::kDevice && !view.data.empty()) {
        DSV4RT_ASSIGN_OR_RETURN(ReservedBytes host, ReservedBytes::reserve(view.data.size(), tensors[i].name));
        const std::byte* const device = std::exchange(view.data, host.bytes()).data();
        source.staged_.push_back({.device = device, .host = std::move(host)});
      }
      views.push_back(view);
    }
    std::sort(source.staged_.begin(), source.staged_.end(),
              [](const Staged& a, const Staged& b) { return a.host.bytes().data() < b.host.bytes().data(); });
    std::sort(views.begin(), views.end(), [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(views.begin(), views.end(),
                                          [](const TensorView& a, const TensorView& b) { return a.name == b.name; });
    if (twice != views.end()) {
      return Status{StatusCode::kInvalidArgument, "tensors: " + quote(twice->name) + " is given twice"};
    }
    return source;
  } catch (const std::bad_alloc&) {
    return out_of_memory("tensors in memory", "listing them");
  }
}

const MemoryTensors::Staged* MemoryTensors::staged_at(const std::byte* data) const noexcept {
  const auto after =
      std::upper_bound(staged_.begin(), staged_.end(), data,
                       [](const std::byte* at, const Staged& staged) { return at < staged.host.bytes().data(); });
  if (after == staged_.begin()) return nullptr;
  const Staged& staged = *std::prev(after);
  return data < staged.host.bytes().data() + staged.host.bytes().size() ? &staged : nullptr;
}

Status MemoryTensors::read(std::span<const std::byte> data) const {
  const Staged* const staged = data.empty() ? nullptr : staged_at(data.data());
  if (staged == nullptr) return {};
  const std::ptrdiff_t offset = data.data() - staged->host.bytes().data();
  return fetch_(staged->host.bytes().data() + offset, staged->device + offset, data.size());
}

void MemoryTensors::drop(std::span<const std::byte> data) const noexcept {
  if (!data.empty() && staged_at(data.data()) != nullptr) drop_pages(data);
}

}  // namespace dsv4rt
