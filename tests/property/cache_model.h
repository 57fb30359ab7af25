// The reference model of KVCacheManager: every sequence is a list of tokens and, per pool, a list of
// numbered blocks. Everything is counted from these lists; nothing is kept up to date on the side.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "dsv4rt/status.h"
#include "dsv4rt/types.h"
#include "fake_device.h"

namespace dsv4rt::property {

struct ModelBlock {
  std::uint64_t number = 0;
  bool maybe_shared = false;  // a fork gave it two owners and this sequence has not written it since
};

struct ModelSequence {
  SequenceId id;
  std::int32_t slot = 0;
  std::int64_t reserve_tokens = 0;
  std::vector<std::uint64_t> tokens;            // tags
  std::vector<std::vector<ModelBlock>> blocks;  // [pool]

  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(tokens.size()); }
};

struct ModelAppend {
  std::size_t sequence = 0;  // index in CacheModel::sequences
  std::int32_t tokens = 0;
};

class CacheModel {
 public:
  std::vector<FakePool> pools;
  std::vector<std::int64_t> totals;      // [pool] blocks without the null block
  std::vector<ModelSequence> sequences;  // live ones

  [[nodiscard]] std::int64_t blocks_for(std::size_t pool, std::int64_t tokens) const {
    const std::int64_t rows = tokens / pools[pool].ratio;
    return (rows + pools[pool].rows_per_block - 1) / pools[pool].rows_per_block;
  }
  [[nodiscard]] bool tail_is_partial(std::size_t pool, std::int64_t tokens) const {
    return (tokens / pools[pool].ratio) % pools[pool].rows_per_block != 0;
  }

  // Distinct blocks; owners of a block always have it in the same column.
  [[nodiscard]] std::int64_t live(std::size_t pool) const {
    std::int64_t count = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      for (std::size_t c = 0; c < sequences[s].blocks[pool].size(); ++c) count += owned_before(pool, s, c) ? 0 : 1;
    }
    return count;
  }
  [[nodiscard]] std::int64_t reserved(std::size_t pool) const {
    std::int64_t sum = 0;
    for (const ModelSequence& sequence : sequences) {
      if (sequence.reserve_tokens == 0) continue;
      const std::int64_t missing = blocks_for(pool, sequence.reserve_tokens) - blocks_for(pool, sequence.length());
      sum += std::max<std::int64_t>(0, missing);
      if (tail_is_partial(pool, sequence.length()) && sequence.blocks[pool].back().maybe_shared) ++sum;
    }
    return sum;
  }
  [[nodiscard]] bool affordable() const {
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      if (totals[pool] - live(pool) < reserved(pool)) return false;
    }
    return true;
  }

  // The operations below change the model unconditionally; callers try them on a copy and keep it
  // when affordable().
  void create(SequenceId id, std::int32_t slot, std::int64_t reserve_tokens) {
    sequences.push_back({.id = id,
                         .slot = slot,
                         .reserve_tokens = reserve_tokens,
                         .tokens = {},
                         .blocks = std::vector<std::vector<ModelBlock>>(pools.size())});
  }
  void fork(std::size_t parent, SequenceId id, std::int32_t slot, std::int64_t reserve_tokens) {
    for (auto& blocks : sequences[parent].blocks) {
      for (ModelBlock& block : blocks) block.maybe_shared = true;
    }
    ModelSequence child = sequences[parent];
    child.id = id;
    child.slot = slot;
    child.reserve_tokens = reserve_tokens;
    sequences.push_back(std::move(child));
  }
  // A sequence whose content comes from elsewhere: blocks of its own.
  void restore(SequenceId id, std::int32_t slot, std::int64_t length, std::int64_t reserve_tokens) {
    create(id, slot, reserve_tokens);
    append({.sequence = sequences.size() - 1, .tokens = static_cast<std::int32_t>(length)});
  }
  void cut(std::size_t index, std::int64_t length) {
    ModelSequence& sequence = sequences[index];
    sequence.tokens.resize(static_cast<std::size_t>(length));
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      sequence.blocks[pool].resize(static_cast<std::size_t>(blocks_for(pool, length)));
    }
  }
  void append(const ModelAppend& entry) {
    ModelSequence& sequence = sequences[entry.sequence];
    const std::int64_t before = sequence.length();
    for (std::int32_t i = 0; i < entry.tokens; ++i) sequence.tokens.push_back(++last_tag_);
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      const std::int64_t ratio = pools[pool].ratio;
      if (sequence.length() / ratio == before / ratio) continue;
      std::vector<ModelBlock>& blocks = sequence.blocks[pool];
      if (tail_is_partial(pool, before)) {
        if (shared(pool, entry.sequence, blocks.size() - 1)) blocks.back().number = ++last_block_;
        blocks.back().maybe_shared = false;
      }
      while (static_cast<std::int64_t>(blocks.size()) < blocks_for(pool, sequence.length())) {
        blocks.push_back({.number = ++last_block_});
      }
    }
  }

 private:
  [[nodiscard]] bool same(std::size_t pool, std::size_t a, std::size_t b, std::size_t column) const {
    const std::vector<ModelBlock>& first = sequences[a].blocks[pool];
    const std::vector<ModelBlock>& second = sequences[b].blocks[pool];
    return column < first.size() && column < second.size() && first[column].number == second[column].number;
  }
  [[nodiscard]] bool owned_before(std::size_t pool, std::size_t sequence, std::size_t column) const {
    for (std::size_t other = 0; other < sequence; ++other) {
      if (same(pool, other, sequence, column)) return true;
    }
    return false;
  }
  [[nodiscard]] bool shared(std::size_t pool, std::size_t sequence, std::size_t column) const {
    for (std::size_t other = 0; other < sequences.size(); ++other) {
      if (other != sequence && same(pool, other, sequence, column)) return true;
    }
    return false;
  }

  std::uint64_t last_tag_ = 0;
  std::uint64_t last_block_ = 0;
};

}  // namespace dsv4rt::property
