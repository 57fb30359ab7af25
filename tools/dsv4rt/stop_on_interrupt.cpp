#include "stop_on_interrupt.h"

#include <array>
#include <cstddef>

namespace dsv4rt::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM};

volatile std::sig_atomic_t signalled = 0;
std::array<struct sigaction, kSignals.size()> before;  // what signals did

void take_back() noexcept {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
}

}  // namespace

StopOnInterrupt::StopOnInterrupt() {
  signalled = 0;
  struct sigaction action {};
  action.sa_handler = [](int) {
    signalled = 1;
    take_back();
  };
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before[i]);
}

StopOnInterrupt::~StopOnInterrupt() {
  take_back();
}

bool StopOnInterrupt::interrupted() noexcept {
  return signalled != 0;
}

}  // namespace dsv4rt::cli
