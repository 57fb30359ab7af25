// Why an operation runs on other kernels than the fastest that its device has. A function that plans an operation
// names the reason; people are told each once.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "backend/cuda/device/cuda_device.h"

namespace dsv4rt::cuda {

enum class SlowPath : std::uint8_t {
  kNone,
  kNoSm90a,          // a Hopper device, and a build without code for sm_90a: everything is portable
  kAttendFormat,     // cached rows that the Hopper kernel of attention does not read
  kAttendWindow,     // a window that it has no room for
  kAttendBlockRows,  // rows of a block that are no power of two
  kAttendTopK,       // more selected rows than it has room for
  kSelectBlockRows,  // rows of a block that are not whole tiles of the Hopper kernels of the selection
  kReasons
};

// Tells people what is slow and what would not be. Empty for kNone.
std::string slow_path_text(SlowPath reason);

// kNoSm90a on a device that could run such code, kNone on others, which have the portable kernels alone.
SlowPath slow_path_without_sm90a(const DeviceFacts& facts) noexcept;

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
