// Recomputes what prefixes have of every block, and compares the tree with sequences and states. For tests and for
// callers who suspect a defect: it allocates and reads everything.
#include <algorithm>
#include <string>

#include "cache/cache_state.h"
#include "cache/prefix_cache.h"

namespace dsv4rt {
namespace {

Status broken_prefix(std::string message) {
  return {StatusCode::kInternal, "prefix cache: " + std::move(message)};
}

}  // namespace

std::vector<PrefixUse> PrefixCache::expected_use(const CacheState& cache, std::int32_t pool) const {
  std::vector<PrefixUse> uses(static_cast<std::size_t>(cache.allocators[static_cast<std::size_t>(pool)].total()) + 1);
  for (PrefixNodeId node = 0; node < tree_.capacity(); ++node) {
    if (!tree_.contains(node) || tree_[node].depth == 0) continue;
    blocks_.for_each(tree_[node].depth, [&](const UnitBlock& block) {
      if (block.pool != pool) return;
      PrefixUse& use = uses[static_cast<std::size_t>(tree_.block_ids(node)[block.id])];
      ++use.nodes;
      use.pinned_nodes += tree_[node].pins > 0 ? 1 : 0;
      use.rows = std::max(use.rows, block.rows);
    });
  }
  return uses;
}

Status PrefixCache::check(const CacheState& cache) const {
  if (Status status = tree_.check(); !status.ok()) return status;
  std::vector<std::int32_t> users(static_cast<std::size_t>(tree_.capacity()), 0);
  for (std::int32_t slot = 0; slot < cache.sequences.capacity(); ++slot) {
    const PrefixTrack& track = this->track(slot);
    if (track.node == kNoPrefixNode) continue;
    const std::string name = "the sequence in slot " + std::to_string(slot);
    if (!cache.sequences[slot].live || !tree_.contains(track.node)) {
      return broken_prefix(name + " is nowhere in the tree");
    }
    ++users[static_cast<std::size_t>(track.node)];
    const std::int64_t reached = std::int64_t{tree_[track.node].depth} * tree_.unit_tokens() + track.pending;
    // Tokens of an outstanding step are in the length, but neither in the tree nor pending.
    std::int64_t length = cache.sequences[slot].length;
    for (const StepSegment& segment : cache.step.segments) {
      if (cache.step.active && segment.slot == slot) length = segment.start;
    }
    if (track.pending < 0 || track.pending >= tree_.unit_tokens() || reached != length) {
      return broken_prefix(name + " of length " + std::to_string(length) + " is at " + std::to_string(reached));
    }
  }
  for (const PrefixTrack& track : tracks_) {
    PrefixNodeId on_path = track.node;
    while (track.rolling != kNoPrefixNode && on_path != kNoPrefixNode && on_path != track.rolling) {
      on_path = tree_[on_path].parent;
    }
    if (track.rolling != kNoPrefixNode && on_path == kNoPrefixNode) {
      return broken_prefix("a sequence would drop the state of node " + std::to_string(track.rolling) +
                           ", which is not on its path");
    }
  }
  std::int64_t states = static_cast<std::int64_t>(free_states_.size() + captures_.size());
  for (PrefixNodeId node = 0; node < tree_.capacity(); ++node) {
    if (!tree_.contains(node)) continue;
    const PrefixNode& record = tree_[node];
    if (record.users != users[static_cast<std::size_t>(node)]) {
      return broken_prefix("node " + std::to_string(node) + " counts " + std::to_string(record.users) + " sequences, " +
                           std::to_string(users[static_cast<std::size_t>(node)]) + " are there");
    }
    if (record.state == kNoBoundaryState) continue;
    ++states;
    if (record.depth == 0 || node_of_state_[static_cast<std::size_t>(record.state)] != node) {
      return broken_prefix("node " + std::to_string(node) + " has a state that is not its own");
    }
  }
  if (states != static_cast<std::int64_t>(node_of_state_.size())) {
    return broken_prefix(std::to_string(states) + " states are free, planned or some unit's; there are " +
                         std::to_string(node_of_state_.size()));
  }
  return {};
}

}  // namespace dsv4rt
