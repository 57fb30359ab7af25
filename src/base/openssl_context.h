// The algorithms of OpenSSL that this library uses, from a library context of its own.
#pragma once

#include <openssl/types.h>

namespace dsv4rt {

// OpenSSL's default context crashes when it is first used without memory left to set it up (3.0: a lock that could not
// be made is locked); one that is made explicitly says so instead, and can be made later. It also keeps what the host
// configures for itself away from these digests.
//
// Made at the first use, freed when the process ends or the library is unloaded. Throws std::bad_alloc; the next call
// then tries again. Any thread.
struct OpensslAlgorithms {
  OSSL_LIB_CTX* context = nullptr;
  EVP_MD* sha256 = nullptr;
  EVP_MAC* hmac = nullptr;

  OpensslAlgorithms();
  ~OpensslAlgorithms();
  OpensslAlgorithms(const OpensslAlgorithms&) = delete;
  OpensslAlgorithms& operator=(const OpensslAlgorithms&) = delete;
};
const OpensslAlgorithms& openssl_algorithms();

}  // namespace dsv4rt
