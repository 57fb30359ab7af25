#include "checkpoint/unfinished_output.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <unistd.h>

#include <sys/random.h>

namespace dsv4rt {
namespace {

constexpr std::size_t kMaxUnfinished = 64;
constexpr std::size_t kNameBytes = 64;

// A handler reads `folder` and, when it is a descriptor, `name`, which was written before it and does not change while
// it is one.
struct Slot {
  static constexpr int kFree = -1;
  static constexpr int kBeingFilled = -2;
  std::atomic<int> folder{kFree};
  std::array<char, kNameBytes> name{};
};
std::array<Slot, kMaxUnfinished> slots;
static_assert(std::atomic<int>::is_always_lock_free, "signal handlers read it");

// Differs between processes and calls; O_EXCL refuses what is there nevertheless.
std::uint64_t unique_number() {
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof number)) return number;
  static std::atomic<std::uint64_t> calls{0};
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return (static_cast<std::uint64_t>(now.tv_sec) << 32 ^ static_cast<std::uint64_t>(now.tv_nsec)) + ++calls;
}

}  // namespace

UnfinishedOutput UnfinishedOutput::in_folder(int folder) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    int free = Slot::kFree;
    if (!slots[i].folder.compare_exchange_strong(free, Slot::kBeingFilled)) continue;
    std::snprintf(slots[i].name.data(), slots[i].name.size(), ".dsv4rt-%ld-%016llx.partial",
                  static_cast<long>(::getpid()), static_cast<unsigned long long>(unique_number()));
    slots[i].folder.store(folder);
    return UnfinishedOutput(i);
  }
  return {};
}

const char* UnfinishedOutput::name() const noexcept {
  return taken() ? slots[slot_].name.data() : "";
}

void UnfinishedOutput::forget() noexcept {
  if (taken()) slots[std::exchange(slot_, kNone)].folder.store(Slot::kFree);
}

void UnfinishedOutput::remove() noexcept {
  if (!taken()) return;
  ::unlinkat(slots[slot_].folder.load(), name(), 0);
  forget();
}

void remove_unfinished_outputs() noexcept {
  for (Slot& slot : slots) {
    const int folder = slot.folder.load();
    if (folder >= 0) ::unlinkat(folder, slot.name.data(), 0);
  }
}

}  // namespace dsv4rt
