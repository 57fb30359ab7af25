#include "engine/sha256.h"

#include <openssl/evp.h>

#include "base/check.h"

namespace dsv4rt {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  DSV4RT_CHECK(context_->md != nullptr);
  DSV4RT_CHECK(EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  DSV4RT_CHECK(EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

Sha256::Digest Sha256::bytes() const {
  const Context copy;  // finishing consumes a context
  Digest digest{};
  DSV4RT_CHECK(EVP_MD_CTX_copy_ex(copy.md, context_->md) == 1);
  DSV4RT_CHECK(EVP_DigestFinal_ex(copy.md, reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

std::string hex_text(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<int>(byte) >> 4];
    text += kDigits[std::to_integer<int>(byte) & 15];
  }
  return text;
}

}  // namespace dsv4rt
