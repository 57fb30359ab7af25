// Long work under watch: somebody is told how far it is, and may end it between two of its parts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt {

class WorkWatch {
 public:
  using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

  // Both may be empty. `end` is asked before every part, until it says so once.
  explicit WorkWatch(std::function<bool()> end, Progress progress = {})
      : end_(std::move(end)), progress_(std::move(progress)) {}

  // Whether the work is to end here; true from the first time on.
  [[nodiscard]] bool asks_to_end() { return stopped_ = stopped_ || (end_ && end_()); }
  // Whether work was ended by this watch before it was complete.
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }
  void tell(std::int64_t done, std::int64_t total) const {
    if (progress_) progress_(done, total);
  }

 private:
  std::function<bool()> end_;
  Progress progress_;
  bool stopped_ = false;
};

// kFailedPrecondition if there is a watch and it asks to end: what measures returns it, and the watch is stopped().
inline Status check_watch(WorkWatch* watch) {
  if (watch == nullptr || !watch->asks_to_end()) return {};
  return {StatusCode::kFailedPrecondition, "stopped before the end"};
}

}  // namespace dsv4rt
