#include "base/hmac_sha256.h"

#include <new>

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "base/check.h"
#include "base/openssl_context.h"

namespace dsv4rt {

struct HmacSha256::Context {
  EVP_MAC_CTX* state = EVP_MAC_CTX_new(openssl_algorithms().hmac);
  Context() = default;
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { EVP_MAC_CTX_free(state); }
};

HmacSha256::HmacSha256(std::span<const std::byte> key) : context_(std::make_unique<Context>()) {
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                               OSSL_PARAM_construct_end()};
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  if (context_->state == nullptr || EVP_MAC_init(context_->state, bytes, key.size(), params) != 1) {
    throw std::bad_alloc();  // its only reason
  }
}
HmacSha256::~HmacSha256() = default;

void HmacSha256::update(std::span<const std::byte> bytes) {
  DSV4RT_CHECK(EVP_MAC_update(context_->state, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) ==
               1);
}

Sha256::Digest HmacSha256::finish() {
  Sha256::Digest code{};
  std::size_t written = 0;
  DSV4RT_CHECK(EVP_MAC_final(context_->state, reinterpret_cast<unsigned char*>(code.data()), &written, code.size()) ==
                   1 &&
               written == code.size());
  return code;
}

bool equal_codes(const Sha256::Digest& one, const Sha256::Digest& other) noexcept {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace dsv4rt
