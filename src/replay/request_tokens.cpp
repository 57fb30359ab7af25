#include "replay/request_tokens.h"

#include <algorithm>
#include <cstddef>

#include "replay/seeded_hash.h"

namespace dsv4rt::replay {
namespace {

std::int32_t token_id(std::uint64_t hash) {
  return static_cast<std::int32_t>(hash >> 33);
}

std::uint64_t own_key(std::uint64_t seed, HashStream stream, const Request& request) {
  return stream_key(seed, stream, static_cast<std::uint64_t>(request.index));
}

void fill_own(std::uint64_t key, std::int64_t first, std::span<std::int32_t> ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = token_id(seeded_hash(key, static_cast<std::uint64_t>(first) + i));
  }
}

}  // namespace

void RequestTokens::token_ids(const Request& request, std::int64_t first, std::span<std::int32_t> ids) const {
  const std::int64_t end = first + static_cast<std::int64_t>(ids.size());
  const std::int64_t block_tokens = request.block_tokens;
  const std::int64_t of_blocks =
      block_tokens > 0
          ? std::min(request.input_tokens, block_tokens * static_cast<std::int64_t>(request.block_ids.size()))
          : 0;
  const auto part = [&](std::int64_t from, std::int64_t to) {
    return ids.subspan(static_cast<std::size_t>(from - first), static_cast<std::size_t>(to - from));
  };
  std::int64_t position = first;
  while (position < std::min(of_blocks, end)) {
    const std::int64_t block = position / block_tokens;
    const std::int64_t stop = std::min({(block + 1) * block_tokens, of_blocks, end});
    const std::uint64_t id = request.block_ids[static_cast<std::size_t>(block)];
    fill_own(stream_key(seed_, HashStream::kBlockTokens, id), position % block_tokens, part(position, stop));
    position = stop;
  }
  if (const std::int64_t stop = std::min(request.input_tokens, end); position < stop) {
    fill_own(own_key(seed_, HashStream::kOwnTokens, request), position, part(position, stop));
    position = stop;
  }
  if (position < end) fill_own(own_key(seed_, HashStream::kOutputTokens, request), position, part(position, end));
}

std::int32_t RequestTokens::draft(const Request& request, std::int64_t first, double acceptance,
                                  std::span<std::int32_t> ids) const {
  const std::uint64_t luck = own_key(seed_, HashStream::kAcceptance, request);
  std::size_t right = 0;
  while (right < ids.size() && unit_value(seeded_hash(luck, static_cast<std::uint64_t>(first) + right)) < acceptance) {
    ++right;
  }
  token_ids(request, first, ids.first(right));
  const std::int64_t first_wrong = first + static_cast<std::int64_t>(right);
  fill_own(own_key(seed_, HashStream::kWrongDrafts, request), first_wrong, ids.subspan(right));
  return static_cast<std::int32_t>(right);
}

}  // namespace dsv4rt::replay
