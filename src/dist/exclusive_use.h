// That a communicator has one user at a time: two engines would use its scratch memory at once.
#pragma once

#include <memory>

#include "dsv4rt/communicator.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

struct EndExclusiveUse {
  void operator()(const Communicator* ranks) const noexcept;
};
// Lasts until it is destroyed; the communicator lives longer. Any thread.
using ExclusiveUse = std::unique_ptr<const Communicator, EndExclusiveUse>;

// kFailedPrecondition while another use lasts. Throws std::bad_alloc, and has changed nothing then.
Result<ExclusiveUse> use_exclusively(const Communicator& ranks);

}  // namespace dsv4rt
