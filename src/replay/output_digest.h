// One digest for the answers of all requests, whatever the order in which they end.
#pragma once

#include <cstdint>
#include <string>

#include "base/sha256.h"
#include "replay/request_record.h"

namespace dsv4rt::replay {

class OutputDigest {
 public:
  // Of a request with an output_digest.
  void add(const RequestRecord& record);
  [[nodiscard]] std::int64_t requests() const noexcept { return requests_; }
  // The bitwise sum modulo 2 of SHA-256("<index> <output digest>") over the requests; empty without any.
  [[nodiscard]] std::string hex() const;

 private:
  Sha256::Digest sum_{};
  std::int64_t requests_ = 0;
};

}  // namespace dsv4rt::replay
