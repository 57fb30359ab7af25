// Memory for the intermediates of a single operation, planned and taken once (Backend::reserve_scratch).
//
// Operations of one backend run in order, so one region serves them all: an operation uses it from its start and
// leaves nothing in it for the next one. A second region is zero between operations: one that counts in it finds zeros
// and leaves zeros.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt {

class Scratch {
 public:
  Scratch() = default;
  Scratch(std::byte* data, std::size_t bytes, std::span<std::byte> zeros = {})
      : data_(data), bytes_(bytes), zeros_(zeros) {}

  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }

  [[nodiscard]] std::span<std::byte> zeros() const noexcept { return zeros_; }

  // The first `bytes` of the region. kResourceExhausted naming the operation and both sizes.
  Result<std::byte*> take(std::size_t bytes, const char* operation) const {
    if (bytes <= bytes_) return data_;
    return Status{StatusCode::kResourceExhausted, std::string(operation) + " needs " + std::to_string(bytes) +
                                                      " B of scratch memory; " + std::to_string(bytes_) +
                                                      " B were planned"};
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::span<std::byte> zeros_;
};

}  // namespace dsv4rt
