// SHA-256 of a stream of bytes (OpenSSL).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace dsv4rt {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  // 64 lower-case hex digits of everything fed so far. Feeding may continue afterwards.
  [[nodiscard]] std::string hex() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace dsv4rt
