#include "checkpoint/tensor_source.h"

namespace dsv4rt {

const TensorView* TensorSource::find_tensor(std::string_view name) const noexcept {
  std::size_t first = 0;
  std::size_t last = tensor_count();
  while (first < last) {
    const std::size_t middle = first + (last - first) / 2;
    if (tensor(middle).name < name) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first < tensor_count() && tensor(first).name == name ? &tensor(first) : nullptr;
}

}  // namespace dsv4rt
