#include "stop_on_interrupt.h"

#include <cstddef>

namespace dsv4rt::cli {
namespace {

volatile std::sig_atomic_t signalled = 0;

}  // namespace

StopOnInterrupt::StopOnInterrupt() {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { signalled = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

StopOnInterrupt::~StopOnInterrupt() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

bool StopOnInterrupt::interrupted() noexcept {
  return signalled != 0;
}

}  // namespace dsv4rt::cli
