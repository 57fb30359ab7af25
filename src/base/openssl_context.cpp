#include "base/openssl_context.h"

#include <new>

#include <openssl/crypto.h>
#include <openssl/evp.h>

namespace dsv4rt {

OpensslAlgorithms::OpensslAlgorithms() : context(OSSL_LIB_CTX_new()) {
  if (context != nullptr) {
    sha256 = EVP_MD_fetch(context, "SHA256", nullptr);
    hmac = EVP_MAC_fetch(context, "HMAC", nullptr);
  }
  if (sha256 != nullptr && hmac != nullptr) return;
  EVP_MD_free(sha256);
  EVP_MAC_free(hmac);
  OSSL_LIB_CTX_free(context);
  throw std::bad_alloc();  // the only reason: both are part of every OpenSSL 3
}

OpensslAlgorithms::~OpensslAlgorithms() {
  EVP_MD_free(sha256);
  EVP_MAC_free(hmac);
  OSSL_LIB_CTX_free(context);
}

const OpensslAlgorithms& openssl_algorithms() {
  static const OpensslAlgorithms algorithms;
  return algorithms;
}

}  // namespace dsv4rt
