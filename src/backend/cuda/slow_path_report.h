// Tells people why operations run on slow kernels.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "backend/cuda/slow_path.h"

namespace dsv4rt::cuda {

// Tells each reason once. From one thread at a time.
class SlowPathReport {
 public:
  SlowPathReport() = default;
  // warn: may be empty.
  explicit SlowPathReport(std::function<void(std::string_view)> warn) : warn_(std::move(warn)) {}

  void tell(SlowPath reason) {
    const std::uint32_t bit = std::uint32_t{1} << static_cast<unsigned>(reason);
    if (reason == SlowPath::kNone || (told_ & bit) != 0) return;
    told_ |= bit;
    if (warn_) warn_(slow_path_text(reason));
  }

 private:
  static_assert(static_cast<unsigned>(SlowPath::kReasons) <= 32);
  std::function<void(std::string_view)> warn_;
  std::uint32_t told_ = 0;
};

}  // namespace dsv4rt::cuda
