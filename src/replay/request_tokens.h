// Token ids of recorded requests, which have lengths and block ids only.
//
// The prompt's token at position p is a seeded hash of (block_ids[p / block_tokens], p % block_tokens): prompts that
// begin with the same block ids begin with the same tokens. Past the block ids, or without any, it is a hash of the
// request and the position, which no other request has. Outputs are hashes of the request and the position as well:
// a later turn contains them only if its block ids say so.
#pragma once

#include <cstdint>
#include <span>

#include "replay/request.h"

namespace dsv4rt::replay {

class RequestTokens {
 public:
  explicit RequestTokens(std::uint64_t seed) : seed_(seed) {}

  // Ids of positions [first, first + ids.size()), in [0, 2^31).
  void token_ids(const Request& request, std::int64_t first, std::span<std::int32_t> ids) const;
  // Guesses for the outputs from position `first` on: leading right ones, then wrong ones. Each is right with
  // probability `acceptance` if those before it are; which are right depends on seed, request and position alone.
  std::int32_t draft(const Request& request, std::int64_t first, double acceptance, std::span<std::int32_t> ids) const;

 private:
  std::uint64_t seed_;
};

}  // namespace dsv4rt::replay
