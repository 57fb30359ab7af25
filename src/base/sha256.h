// SHA-256 of a stream of bytes (OpenSSL).
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace dsv4rt {

// Two lower-case hex digits a byte.
std::string hex_text(std::span<const std::byte> bytes);

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  using Digest = std::array<std::byte, 32>;
  // The digest of everything fed so far. Feeding may continue afterwards.
  [[nodiscard]] Digest bytes() const;
  // The same, without a copy of the state: nothing may be fed afterwards but after restart(). Takes no memory.
  [[nodiscard]] Digest finish();
  // Forgets everything fed so far.
  void restart();
  // The digest as 64 lower-case hex digits.
  [[nodiscard]] std::string hex() const { return hex_text(bytes()); }

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace dsv4rt
