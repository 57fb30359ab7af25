// Small results on their way from backend memory to the host, for which nobody has to wait.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "dsv4rt/status.h"

namespace dsv4rt {

// Some bytes of backend memory and a number of places on the host that they are copied to in turn.
class ReadBacks {
 public:
  virtual ~ReadBacks() = default;
  // Enqueues a copy of the memory to a place, and zeros into the memory behind it. Takes no memory.
  virtual Status take(std::size_t place) = 0;
  // What the last take() of the place copied; empty while it has not run, or if there was none.
  virtual Result<std::span<const std::byte>> taken(std::size_t place) = 0;
  // The same once the last take() of the place has run, which is waited for; work behind it is not.
  virtual Result<std::span<const std::byte>> wait(std::size_t place) = 0;
};

// Of a backend whose memory is the host's.
class HostReadBacks final : public ReadBacks {
 public:
  HostReadBacks(std::span<std::byte> memory, std::size_t places)
      : memory_(memory), taken_(places), copies_(places * memory.size()) {}

  Status take(std::size_t place) override {
    std::memcpy(copies_.data() + place * memory_.size(), memory_.data(), memory_.size());
    std::memset(memory_.data(), 0, memory_.size());
    taken_[place] = true;
    return {};
  }
  Result<std::span<const std::byte>> taken(std::size_t place) override {
    if (!taken_[place]) return std::span<const std::byte>();
    return std::span<const std::byte>(copies_).subspan(place * memory_.size(), memory_.size());
  }
  Result<std::span<const std::byte>> wait(std::size_t place) override { return taken(place); }

 private:
  std::span<std::byte> memory_;
  std::vector<bool> taken_;
  std::vector<std::byte> copies_;
};

}  // namespace dsv4rt
