// What prefixes are told apart by: a chain of SHA-256 digests.
//
// root(checkpoint, layout, salt), then one digest a unit over the digest before and the unit's token ids. Every part
// is preceded by its length and every digest by a tag of its kind, so that no two different lists of parts feed the
// same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/sha256.h"
#include "dsv4rt/prefix_cache.h"

namespace dsv4rt {

class PrefixHasher {
 public:
  // Digest of what all prefixes of an engine have in common.
  static PrefixDigest engine_digest(std::span<const std::byte> checkpoint, std::span<const std::byte> layout);

  explicit PrefixHasher(const PrefixDigest& engine) : engine_(engine) {}

  [[nodiscard]] PrefixDigest root(std::span<const std::byte> salt);
  [[nodiscard]] PrefixDigest unit(const PrefixDigest& before, std::span<const std::int32_t> token_ids);

 private:
  PrefixDigest engine_;
  Sha256 hash_;  // kept: making one costs more than hashing a unit
};

}  // namespace dsv4rt
