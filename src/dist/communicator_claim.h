// That a communicator has one user at a time: two engines would use its scratch memory at once.
#pragma once

#include <utility>

#include "dsv4rt/communicator.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// What take() gives holds the communicator until it is destroyed. Any thread.
class CommunicatorClaim {
 public:
  CommunicatorClaim() = default;
  CommunicatorClaim(CommunicatorClaim&& other) noexcept : ranks_(std::exchange(other.ranks_, nullptr)) {}
  CommunicatorClaim& operator=(CommunicatorClaim&& other) noexcept {
    std::swap(ranks_, other.ranks_);
    return *this;
  }
  CommunicatorClaim(const CommunicatorClaim&) = delete;
  CommunicatorClaim& operator=(const CommunicatorClaim&) = delete;
  ~CommunicatorClaim();

  // kFailedPrecondition while another claim holds it; kResourceExhausted without memory.
  static Result<CommunicatorClaim> take(const Communicator& ranks);

 private:
  explicit CommunicatorClaim(const Communicator* ranks) : ranks_(ranks) {}

  const Communicator* ranks_ = nullptr;
};

}  // namespace dsv4rt
