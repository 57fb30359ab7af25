// Sequences along the tree: beginning at a unit, branching, shrinking, ending.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_state.h"
#include "cache/prefix_cache.h"

namespace dsv4rt {

// The table is filled first, without owners, so that what the attachment costs can be counted block by block: cached
// blocks that become live can no more be had by those whose reservations counted on them.
Status PrefixCache::attach(CacheState& cache, std::int32_t slot, PrefixNodeId node, std::int32_t reserve_tokens) {
  const std::int32_t length = tree_[node].depth * tree_.unit_tokens();
  for (PrefixNodeId unit = node; tree_[unit].depth > 0; unit = tree_[unit].parent) {
    const std::span<const std::int32_t> ids = tree_.block_ids(unit);
    blocks_.for_each(tree_[unit].depth, [&](const UnitBlock& block) {
      std::int32_t& entry = cache.groups[block.group].table_entry(slot, block.column)[block.member];
      if (entry == 0) entry = ids[block.id];  // a deeper unit's block has the rows of those before it
    });
  }
  if (const std::optional<Shortage> shortage = cache.short_of_sharing(slot, length, reserve_tokens)) {
    cache.clear_table(slot, length);  // before the text of the refusal: making it may run out of memory
    return cache.blocks_short(shortage->pool, shortage->wanted, "create_sequence, with a cached prefix,");
  }
  cache.share_table(slot, length, reserve_tokens);
  tree_.touch(node);
  tree_.mark_reused(node);
  return {};
}

PrefixNodeId PrefixCache::root(CacheState& cache, std::span<const std::byte> salt) {
  const PrefixDigest digest = hasher_.root(salt);
  const PrefixNodeId known = tree_.find_root(digest);
  if (known != kNoPrefixNode) return known;
  if (!make_room(cache, kNoPrefixNode)) {
    ++stats_.sequences_detached;
    return kNoPrefixNode;
  }
  return tree_.insert_root(digest);
}

void PrefixCache::begin(std::int32_t slot, PrefixNodeId node, std::int32_t prompt_tokens, const PrefixPolicy& policy) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  DSV4RT_CHECK(track.node == kNoPrefixNode);
  track = {.node = node, .prompt_tokens = prompt_tokens, .policy = policy};
  tree_.add_users(node, 1);
}

void PrefixCache::copy_track(std::int32_t parent, std::int32_t child) {
  const PrefixTrack& source = track(parent);
  if (source.node == kNoPrefixNode) return;
  begin(child, source.node, source.prompt_tokens, source.policy);
  tracks_[static_cast<std::size_t>(child)].pending = source.pending;
  std::copy_n(pending_ids(parent), source.pending, pending_ids(child));
}

// Tokens after the new last unit are those of the unit that is left, or were pending already.
void PrefixCache::truncate(std::int32_t slot, std::int64_t length) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  if (track.node == kNoPrefixNode) return;
  const std::int64_t unit = tree_.unit_tokens();
  const std::int64_t kept_units = length / unit;
  const PrefixNodeId old = track.node;
  PrefixNodeId left = kNoPrefixNode;
  PrefixNodeId node = old;
  for (; tree_[node].depth > kept_units; node = tree_[node].parent) left = node;
  if (left != kNoPrefixNode) {
    track.pending = static_cast<std::int32_t>(length % unit);
    std::copy_n(tree_.token_ids(left).begin(), track.pending, pending_ids(slot));
  } else {
    track.pending = static_cast<std::int32_t>(std::min<std::int64_t>(track.pending, length - tree_[node].depth * unit));
  }
  if (node == old) return;
  track.node = node;
  track.rolling = kNoPrefixNode;
  tree_.add_users(node, 1);
  tree_.add_users(old, -1);
}

void PrefixCache::release(std::int32_t slot) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  if (track.node != kNoPrefixNode) {
    tree_.touch(track.node);
    tree_.add_users(track.node, -1);
  }
  track = {};
}

}  // namespace dsv4rt
