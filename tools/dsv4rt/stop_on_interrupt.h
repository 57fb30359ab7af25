// Ctrl-C and SIGTERM as a question: whoever asks ends in its own time, with the results so far.
#pragma once

#include <csignal>

namespace dsv4rt::cli {

// While it lives, the first SIGINT or SIGTERM is only noted; a second one ends the program as usual. One at a time.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

  [[nodiscard]] static bool interrupted() noexcept;
};

}  // namespace dsv4rt::cli
