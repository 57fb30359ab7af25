// The blocks that a log asks for, in order and compact: what a policy that knows the future needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/request.h"

namespace dsv4rt::replay {

// Four bytes a block asked for, 24 a request, and a table of the distinct blocks.
class BlockSequence {
 public:
  struct RequestBlocks {
    std::size_t begin = 0;  // in blocks()
    std::int64_t input_tokens = 0;
    std::int32_t block_tokens = 0;
  };

  // kResourceExhausted beyond 2^32 - 1 distinct blocks.
  Status add(const Request& request);

  [[nodiscard]] std::size_t requests() const noexcept { return requests_.size(); }
  [[nodiscard]] const RequestBlocks& request(std::size_t i) const { return requests_[i]; }
  // Blocks numbered from 0 in order of first appearance.
  [[nodiscard]] std::span<const std::uint32_t> blocks_of(std::size_t request) const;
  [[nodiscard]] std::span<const std::uint32_t> blocks() const noexcept { return blocks_; }
  [[nodiscard]] std::size_t distinct_blocks() const noexcept { return number_of_.size(); }

 private:
  std::vector<RequestBlocks> requests_;
  std::vector<std::uint32_t> blocks_;
  std::unordered_map<std::uint64_t, std::uint32_t> number_of_;
};

}  // namespace dsv4rt::replay
