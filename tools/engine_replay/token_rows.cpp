#include "tools/engine_replay/token_rows.h"

#include <algorithm>
#include <cstddef>

#include "base/bfloat16.h"
#include "checkpoint/synthetic_values.h"
#include "replay/seeded_hash.h"

namespace dsv4rt {

TokenRows::TokenRows(std::uint64_t seed, std::int64_t hidden_size)
    : hidden_size_(hidden_size),
      key_(replay::stream_key(seed, replay::HashStream::kHiddenRows, 0)),
      rows_(static_cast<std::size_t>(kRows * hidden_size)) {
  const SyntheticStream stream(seed, "hidden rows of tokens");
  for (std::size_t i = 0; i < rows_.size(); ++i) rows_[i] = to_bf16(stream.normal(i)).bits;
}

void TokenRows::gather(std::span<const std::int32_t> ids, Bf16Bits* rows) const {
  for (const std::int32_t id : ids) {
    const std::uint64_t row = replay::seeded_hash(key_, static_cast<std::uint64_t>(id)) % kRows;
    rows = std::copy_n(rows_.begin() + static_cast<std::ptrdiff_t>(row) * hidden_size_, hidden_size_, rows);
  }
}

}  // namespace dsv4rt
