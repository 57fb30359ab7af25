#include "runtime/sha256.h"

#include <array>

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

std::string Sha256::hex() const {
  const Context copy;  // finishing consumes a context
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  DSV4RT_CHECK(EVP_MD_CTX_copy_ex(copy.md, context_->md) == 1);
  DSV4RT_CHECK(EVP_DigestFinal_ex(copy.md, digest.data(), &length) == 1);
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned int i = 0; i < length; ++i) {
    text += kDigits[digest[i] >> 4];
    text += kDigits[digest[i] & 15];
  }
  return text;
}

}  // namespace dsv4rt
