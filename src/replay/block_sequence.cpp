#include "replay/block_sequence.h"

#include <string>

namespace dsv4rt::replay {

Status BlockSequence::add(const Request& request) {
  requests_.push_back({blocks_.size(), request.input_tokens, request.block_tokens});
  for (const std::uint64_t id : request.block_ids) {
    if (number_of_.size() == std::numeric_limits<std::uint32_t>::max()) {
      return {StatusCode::kResourceExhausted, "more than 2^32 - 1 distinct blocks; a shorter log is accepted"};
    }
    blocks_.push_back(number_of_.emplace(id, static_cast<std::uint32_t>(number_of_.size())).first->second);
  }
  return {};
}

std::span<const std::uint32_t> BlockSequence::blocks_of(std::size_t request) const {
  const std::size_t begin = requests_[request].begin;
  const std::size_t end = request + 1 < requests_.size() ? requests_[request + 1].begin : blocks_.size();
  return std::span(blocks_).subspan(begin, end - begin);
}

}  // namespace dsv4rt::replay
