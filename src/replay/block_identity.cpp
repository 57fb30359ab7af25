#include "replay/block_identity.h"

#include <algorithm>
#include <string>

namespace dsv4rt::replay {

Status check_block_ids(std::size_t ids, std::int64_t input_tokens, std::int32_t block_tokens, std::string_view field,
                       RecordErrors& errors) {
  const auto full = static_cast<std::size_t>(input_tokens / block_tokens);
  const std::size_t all = full + (input_tokens % block_tokens == 0 ? 0 : 1);
  if (ids >= full && ids <= all) return {};
  return errors.refuse_field(BadReason::kBlockIds, field,
                             std::to_string(ids) + " ids for a prompt of " + std::to_string(input_tokens) +
                                 " tokens in blocks of " + std::to_string(block_tokens),
                             std::to_string(full) + (all == full ? "" : " or " + std::to_string(all)) +
                                 " ids; if every line is refused, the block size is wrong (--block-tokens)");
}

std::uint64_t mix_ids(std::uint64_t a, std::uint64_t b) noexcept {
  // The finalizer of splitmix64 (Steele, Lea, Flood 2014), once for each input.
  const auto scramble = [](std::uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  };
  return scramble(scramble(a) ^ b);
}

std::uint64_t text_id(std::string_view text) noexcept {
  std::uint64_t id = text.size();
  for (const char c : text) id = mix_ids(id, static_cast<unsigned char>(c));
  return id;
}

std::vector<std::uint64_t> token_block_ids(std::span<const std::uint64_t> tokens, std::int32_t block_tokens) {
  const auto block = static_cast<std::size_t>(block_tokens);
  std::vector<std::uint64_t> ids;
  ids.reserve(tokens.size() / block + 1);
  std::uint64_t chain = 0;
  for (std::size_t begin = 0; begin < tokens.size(); begin += block) {
    for (const std::uint64_t token : tokens.subspan(begin, std::min(block, tokens.size() - begin))) {
      chain = mix_ids(chain, token);
    }
    ids.push_back(chain);
  }
  return ids;
}

}  // namespace dsv4rt::replay
