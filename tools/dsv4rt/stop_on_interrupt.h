// Ctrl-C and SIGTERM as a question: whoever asks ends in its own time, with the results so far.
#pragma once

#include <array>
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

 private:
  static constexpr std::array<int, 2> kSignals{SIGINT, SIGTERM};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace dsv4rt::cli
