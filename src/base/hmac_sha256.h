// HMAC-SHA-256 of a stream of bytes (OpenSSL).
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/sha256.h"

namespace dsv4rt {

class HmacSha256 {
 public:
  // Throws std::bad_alloc. The key is copied.
  explicit HmacSha256(std::span<const std::byte> key);
  ~HmacSha256();
  HmacSha256(const HmacSha256&) = delete;
  HmacSha256& operator=(const HmacSha256&) = delete;

  void update(std::span<const std::byte> bytes);
  // The code of everything fed; nothing may be fed afterwards.
  [[nodiscard]] Sha256::Digest finish();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Takes the same time wherever the two differ.
bool equal_codes(const Sha256::Digest& one, const Sha256::Digest& other) noexcept;

}  // namespace dsv4rt
