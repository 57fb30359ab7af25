// Ids of blocks of prompt tokens: checks, and ids made where a log has token ids instead.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/record_errors.h"

namespace dsv4rt::replay {

inline constexpr std::int32_t kMaxBlockTokens = 1 << 16;
// Tokens of a block where a log has token ids, unless options say another number.
inline constexpr std::int32_t kTokenBlockTokens = 256;

// A prompt of n tokens has floor(n / block_tokens) ids, or one more for the partial block at its end. With any other
// number the block size is wrong, and every hit would be counted in wrong tokens. `field` names the ids.
Status check_block_ids(std::size_t ids, std::int64_t input_tokens, std::int32_t block_tokens, std::string_view field,
                       RecordErrors& errors);

// Combines two ids into one; different pairs give different ids but for chance (2^-64 a pair).
std::uint64_t mix_ids(std::uint64_t a, std::uint64_t b) noexcept;
// An id for a text, likewise.
std::uint64_t text_id(std::string_view text) noexcept;

// Ids of a prompt's blocks of `block_tokens` token ids, the last of which may be partial. Each depends on all tokens
// before its end, so equal ids mean equal prefixes.
std::vector<std::uint64_t> token_block_ids(std::span<const std::uint64_t> tokens, std::int32_t block_tokens);

}  // namespace dsv4rt::replay
