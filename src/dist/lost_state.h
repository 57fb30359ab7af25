// What a communicator knows of its own loss. Any thread may ask; the first cause stays.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt {

class LostState {
 public:
  // kBackendLost with the first cause given.
  Status lose(std::string cause) {
    const std::lock_guard lock(mutex_);
    if (!lost_.load(std::memory_order_relaxed)) {
      cause_ = std::move(cause);
      lost_.store(true, std::memory_order_release);
    }
    return {StatusCode::kBackendLost, cause_};
  }
  [[nodiscard]] bool lost() const noexcept { return lost_.load(std::memory_order_acquire); }
  [[nodiscard]] Status status() const {
    if (!lost()) return {};
    const std::lock_guard lock(mutex_);
    return {StatusCode::kBackendLost, cause_};
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> lost_{false};
  std::string cause_;
};

}  // namespace dsv4rt
