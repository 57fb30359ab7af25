// Why an operation runs on other kernels than the fastest that its device has. A function that plans an operation
// names the reason; SlowPathReport tells people.
#pragma once

#include <cstdint>
#include <string>

#include "backend/cuda/device/device_facts.h"

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

}  // namespace dsv4rt::cuda
