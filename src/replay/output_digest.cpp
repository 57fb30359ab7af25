#include "replay/output_digest.h"

#include <cstddef>
#include <span>

namespace dsv4rt::replay {

void OutputDigest::add(const RequestRecord& record) {
  const std::string text = std::to_string(record.index) + " " + record.output_digest;
  Sha256 sha256;
  sha256.update(std::as_bytes(std::span(text)));
  const Sha256::Digest digest = sha256.finish();
  for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] ^= digest[i];
  ++requests_;
}

std::string OutputDigest::hex() const {
  return requests_ == 0 ? std::string() : hex_text(sum_);
}

}  // namespace dsv4rt::replay
