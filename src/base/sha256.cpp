#include "base/sha256.h"

#include <new>

#include <openssl/evp.h>

#include "base/check.h"
#include "base/openssl_context.h"

namespace dsv4rt {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  Context() {
    if (md == nullptr) throw std::bad_alloc();
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  const EVP_MD* const algorithm = openssl_algorithms().sha256;
  if (EVP_DigestInit_ex2(context_->md, algorithm, nullptr) != 1) throw std::bad_alloc();  // its only reason
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
  if (EVP_MD_CTX_copy_ex(copy.md, context_->md) != 1) throw std::bad_alloc();
  DSV4RT_CHECK(EVP_DigestFinal_ex(copy.md, reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

Sha256::Digest Sha256::finish() {
  Digest digest{};
  DSV4RT_CHECK(EVP_DigestFinal_ex(context_->md, reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1);
  return digest;
}

// The context keeps its algorithm: no other one is looked up.
void Sha256::restart() {
  DSV4RT_CHECK(EVP_DigestInit_ex2(context_->md, nullptr, nullptr) == 1);
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
