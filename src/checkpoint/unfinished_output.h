// The unique names of output files that are being written, so that a process that is told to end can remove them.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace dsv4rt {

// A name that is removed from its folder at the end of the object, or by remove_unfinished_outputs().
class UnfinishedOutput {
 public:
  UnfinishedOutput() = default;
  // Takes a name for a file in the folder behind descriptor `folder`, which must outlive this object. Nothing is
  // created. taken() is false when too many are being written.
  static UnfinishedOutput in_folder(int folder);

  UnfinishedOutput(UnfinishedOutput&& other) noexcept : slot_(std::exchange(other.slot_, kNone)) {}
  UnfinishedOutput& operator=(UnfinishedOutput&& other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~UnfinishedOutput() { remove(); }

  [[nodiscard]] bool taken() const noexcept { return slot_ != kNone; }
  [[nodiscard]] const char* name() const noexcept;
  // The file has another name now.
  void forget() noexcept;
  void remove() noexcept;

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  explicit UnfinishedOutput(std::size_t slot) : slot_(slot) {}

  std::size_t slot_ = kNone;
};

// Unlinks every unfinished output of the process. Async-signal-safe: for handlers of signals that end the process.
void remove_unfinished_outputs() noexcept;

}  // namespace dsv4rt
