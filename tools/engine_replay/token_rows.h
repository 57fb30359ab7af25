// Hidden states for token ids: no checkpoint of this library has an embedding.
//
// A token's row is one of kRows random rows, chosen by a hash of seed and id. Every layer gets it: layers have
// different weights, so what they make of it differs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dsv4rt/engine.h"

namespace dsv4rt {

class TokenRows {
 public:
  static constexpr std::int64_t kRows = 4096;

  TokenRows(std::uint64_t seed, std::int64_t hidden_size);

  // The tokens' rows one after another, [ids, hidden_size].
  void gather(std::span<const std::int32_t> ids, Bf16Bits* rows) const;

 private:
  std::int64_t hidden_size_;
  std::uint64_t key_;
  std::vector<Bf16Bits> rows_;  // [kRows, hidden_size]
};

}  // namespace dsv4rt
