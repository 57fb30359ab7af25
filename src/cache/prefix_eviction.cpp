// What leaves: the least useful leaf first (PrefixTree), on request, or for a quota; and what may not (pins).
#include <algorithm>

#include "base/check.h"
#include "cache/cache_state.h"
#include "cache/prefix_cache.h"

namespace dsv4rt {

// Every block that is cached and not pinned is free once all leaves that may leave have left.
void PrefixCache::reclaim(CacheState& cache, std::int32_t pool, std::int64_t blocks) {
  const BlockAllocator& allocator = cache.allocators[static_cast<std::size_t>(pool)];
  DSV4RT_CHECK(allocator.available() >= blocks);
  while (allocator.free() < blocks) {
    const PrefixNodeId least = tree_.least_useful();
    DSV4RT_CHECK(least != kNoPrefixNode);
    evict(cache, least, PrefixRemoval::kSpace);
  }
}

// Room for one more node, below `root` if one is given. Only what no sequence continues from makes room.
bool PrefixCache::make_room(CacheState& cache, PrefixNodeId root) {
  if (root != kNoPrefixNode && tree_[root].units_of_root >= quota_units_) {
    const PrefixNodeId least = tree_.least_useful_of(root);
    if (least == kNoPrefixNode || tree_[least].users > 0) return false;
    evict(cache, least, PrefixRemoval::kQuota);
  }
  if (!tree_.full()) return true;
  const PrefixNodeId least = tree_.least_useful();
  if (least == kNoPrefixNode || tree_[least].users > 0) return false;
  evict(cache, least, PrefixRemoval::kSpace);
  return true;
}

void PrefixCache::evict(CacheState& cache, PrefixNodeId node, PrefixRemoval why) {
  const bool is_unit = tree_[node].depth > 0;
  for (std::size_t slot = 0; slot < tracks_.size(); ++slot) {
    if (is_unit && tracks_[slot].node == node) detach(static_cast<std::int32_t>(slot));
  }
  if (tree_[node].state != kNoBoundaryState) drop_state(node, why);
  note(PrefixEvent::Kind::kUnitRemoved, node, why);
  if (is_unit) {
    blocks_.for_each(tree_[node].depth,
                     [&](const UnitBlock& block) { leave_block(cache, node, block, tree_.block_ids(node)[block.id]); });
    std::int64_t& count = why == PrefixRemoval::kSpace   ? stats_.units_removed_for_space
                          : why == PrefixRemoval::kQuota ? stats_.units_removed_by_quota
                                                         : stats_.units_removed_on_request;
    ++count;
  }
  tree_.remove(node);
}

// Further tokens of the sequence are not kept; what it holds stays its own.
void PrefixCache::detach(std::int32_t slot) {
  PrefixTrack& track = tracks_[static_cast<std::size_t>(slot)];
  tree_.add_users(track.node, -1);
  track = {};
  ++stats_.sequences_detached;
}

// Pinned blocks cannot be had any more: reservations must be affordable without them.
Status PrefixCache::pin(CacheState& cache, PrefixNodeId node) {
  change_pins(cache, node, 1);
  for (std::size_t pool = 0; pool < cache.allocators.size(); ++pool) {
    const auto id = static_cast<std::int32_t>(pool);
    if (cache.allocators[pool].available() >= cache.group_of(id).reserved_blocks()) continue;
    change_pins(cache, node, -1);
    return cache.blocks_short(id, 1, "pin_prefix, to keep what sequences have reserved,");
  }
  return {};
}

void PrefixCache::unpin(CacheState& cache, PrefixNodeId node) {
  DSV4RT_CHECK(tree_[node].own_pins > 0);
  change_pins(cache, node, -1);
}

// Blocks follow units that become pinned or stop being so.
void PrefixCache::change_pins(CacheState& cache, PrefixNodeId node, std::int32_t change) {
  const std::int32_t pinned_before = change > 0 ? 0 : 1;
  for (PrefixNodeId unit = node; tree_[unit].depth > 0; unit = tree_[unit].parent) {
    if (tree_[unit].pins != pinned_before) break;  // so have all above it: their pins include this one's
    const std::span<const std::int32_t> ids = tree_.block_ids(unit);
    blocks_.for_each(tree_[unit].depth, [&](const UnitBlock& block) {
      cache.allocators[static_cast<std::size_t>(block.pool)].change_pin(BlockId(ids[block.id]), change);
    });
  }
  tree_.add_pins(node, change);
}

std::int32_t PrefixCache::evict_branch(CacheState& cache, PrefixNodeId node) {
  std::int32_t evicted = 0;
  while (tree_[node].depth > 0 && tree_[node].children == 0 && tree_[node].pins == 0) {
    const PrefixNodeId parent = tree_[node].parent;
    evict(cache, node, PrefixRemoval::kRequest);
    ++evicted;
    node = parent;
  }
  return evicted;
}

void PrefixCache::evict_all(CacheState& cache) {
  for (PrefixNodeId least = tree_.least_useful(); least != kNoPrefixNode; least = tree_.least_useful()) {
    evict(cache, least, PrefixRemoval::kRequest);
  }
}

}  // namespace dsv4rt
