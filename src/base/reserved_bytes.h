// Addresses of host memory that is taken page by page as it is written, and given back so; then it reads as zeros.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt {

// Gives the memory of whole pages in `bytes`, which are mapped and private, back.
void drop_pages(std::span<const std::byte> bytes) noexcept;

class ReservedBytes {
 public:
  // kResourceExhausted naming `purpose`. bytes > 0.
  static Result<ReservedBytes> reserve(std::size_t bytes, std::string_view purpose);
  ReservedBytes(ReservedBytes&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  ReservedBytes& operator=(ReservedBytes&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ReservedBytes(const ReservedBytes&) = delete;
  ReservedBytes& operator=(const ReservedBytes&) = delete;
  ~ReservedBytes();

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit ReservedBytes(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace dsv4rt
