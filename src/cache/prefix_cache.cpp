// What is kept: units with their blocks, states at their ends. prefix_sequences.cpp has how sequences use it,
// prefix_steps.cpp how they fill it, prefix_eviction.cpp how it shrinks.
#include "cache/prefix_cache.h"

#include <algorithm>
#include <limits>

#include "base/arithmetic.h"
#include "base/check.h"
#include "cache/cache_state.h"

namespace dsv4rt {
namespace {

std::int32_t unit_of(const CacheState& cache) {
  return static_cast<std::int32_t>(cache.layout.prefix_unit_tokens());
}

// Units whose rows fill the pools, one begun unit and one root a sequence: more are never kept at once, unless
// prefixes of few tokens and many salts make roots the larger part.
std::int32_t node_capacity(const CacheState& cache) {
  const std::int64_t units = cache.limits.pool_tokens / cache.layout.prefix_unit_tokens();
  const std::int64_t nodes = units + 2 * std::int64_t{cache.limits.max_sequences} + cache.limits.boundary_states + 2;
  return static_cast<std::int32_t>(std::min<std::int64_t>(nodes, std::numeric_limits<std::int32_t>::max() / 2));
}

std::size_t most_captures(const CacheState& cache) {
  return static_cast<std::size_t>(cache.limits.max_step_tokens / cache.layout.prefix_unit_tokens() +
                                  cache.limits.max_sequences);
}

}  // namespace

PrefixCache::PrefixCache(const CacheState& cache, const PrefixCacheSettings& settings)
    : blocks_(cache.groups, unit_of(cache)),
      tree_(node_capacity(cache), unit_of(cache), static_cast<std::int32_t>(blocks_.ids()), settings.eviction),
      hasher_(settings.engine),
      quota_units_(settings.tenant_quota_tokens > 0
                       ? std::max<std::int64_t>(1, settings.tenant_quota_tokens / tree_.unit_tokens())
                       : std::numeric_limits<std::int64_t>::max()),
      records_events_(settings.record_events) {
  const auto slots = static_cast<std::size_t>(cache.limits.max_sequences);
  const auto states = static_cast<std::size_t>(cache.limits.boundary_states);
  tracks_.resize(slots);
  pending_ids_.resize(slots * static_cast<std::size_t>(tree_.unit_tokens()));
  step_ids_.reserve(static_cast<std::size_t>(cache.limits.max_step_tokens));
  first_step_id_.reserve(slots);
  captures_.reserve(most_captures(cache));
  boundary_copies_.reserve(most_captures(cache));
  node_of_state_.assign(states, kNoPrefixNode);
  free_states_.reserve(states);
  for (auto state = static_cast<std::int32_t>(states) - 1; state >= 0; --state) free_states_.push_back(state);
  if (records_events_) events_.reserve(static_cast<std::size_t>(tree_.capacity()) + 2 * states + most_captures(cache));
}

PrefixCache::Match PrefixCache::match(std::span<const std::byte> salt, std::span<const std::int32_t> token_ids,
                                      std::int64_t most_tokens) {
  Match found;
  PrefixNodeId node = tree_.find_root(hasher_.root(salt));
  const auto unit = static_cast<std::size_t>(tree_.unit_tokens());
  const auto units = static_cast<std::size_t>(std::max<std::int64_t>(most_tokens, 0)) / unit;
  for (std::size_t i = 0; node != kNoPrefixNode; ++i) {
    found.last = node;
    if (tree_[node].state != kNoBoundaryState) found.with_state = node;
    if (i == units) break;
    const std::span<const std::int32_t> ids = token_ids.subspan(i * unit, unit);
    node = tree_.find_child(node, hasher_.unit(tree_[node].digest, ids), ids);
  }
  return found;
}

PrefixNodeId PrefixCache::boundary_on_path(std::int32_t slot, std::int64_t length) const noexcept {
  const std::int64_t unit = tree_.unit_tokens();
  PrefixNodeId node = track(slot).node;
  if (length <= 0 || length % unit != 0) return kNoPrefixNode;
  while (node != kNoPrefixNode && tree_[node].depth * unit > length) node = tree_[node].parent;
  const bool there = node != kNoPrefixNode && tree_[node].depth * unit == length;
  return there && tree_[node].state != kNoBoundaryState ? node : kNoPrefixNode;
}

PrefixNodeId PrefixCache::shallower_with_state(PrefixNodeId node) const noexcept {
  do {
    node = tree_[node].parent;
  } while (node != kNoPrefixNode && tree_[node].state == kNoBoundaryState);
  return node;
}

// ---- Units and their blocks ---------------------------------------------------------------------

// The sequence in `slot` holds the unit's blocks.
PrefixNodeId PrefixCache::insert(CacheState& cache, std::int32_t slot, PrefixNodeId parent, const PrefixDigest& digest,
                                 std::span<const std::int32_t> token_ids) {
  const PrefixNodeId node = tree_.insert(parent, digest, token_ids);
  const std::span<std::int32_t> ids = tree_.block_ids(node);
  blocks_.for_each(tree_[node].depth, [&](const UnitBlock& block) {
    ids[block.id] = cache.groups[block.group].table_entry(slot, block.column)[block.member];
    cache.allocators[static_cast<std::size_t>(block.pool)].add_prefix(BlockId(ids[block.id]), block.rows, false);
  });
  adopt_blocks(cache, node);
  // Whoever begins at the unit comes to own these blocks: full ones are never written again, the last one is looked at
  // when somebody does (attach).
  const std::int32_t end = tree_[node].depth * tree_.unit_tokens();
  for (KvCacheGroup& group : cache.groups) {
    group.set_shared_prefix_blocks(slot, std::max(group.shared_prefix_blocks(slot), group.full_blocks(end)));
  }
  ++stats_.units_stored;
  note(PrefixEvent::Kind::kUnitStored, node);
  return node;
}

// Ancestors that begin the same block column take the new unit's block for theirs: it holds their rows too.
void PrefixCache::adopt_blocks(CacheState& cache, PrefixNodeId node) {
  blocks_.for_each(tree_[node].depth, [&](const UnitBlock& newest) {
    const std::int32_t adopted = tree_.block_ids(node)[newest.id];
    BlockAllocator& allocator = cache.allocators[static_cast<std::size_t>(newest.pool)];
    UnitBlock block = newest;
    PrefixNodeId above = node;
    while (block.rows_before > 0) {
      above = tree_[above].parent;
      block = blocks_.of_unit_before(tree_[above].depth, block);
      std::int32_t& id = tree_.block_ids(above)[block.id];
      if (id == adopted) return;
      leave_block(cache, above, block, id);
      id = adopted;
      allocator.add_prefix(BlockId(adopted), block.rows, tree_[above].pins > 0);
    }
  });
}

void PrefixCache::leave_block(CacheState& cache, PrefixNodeId node, const UnitBlock& block, std::int32_t id) {
  BlockAllocator& allocator = cache.allocators[static_cast<std::size_t>(block.pool)];
  const std::int32_t rows = rows_without(allocator.prefix_use(BlockId(id)), node, block, id);
  const bool freed = allocator.drop_prefix(BlockId(id), rows, tree_[node].pins > 0);
  if (freed && cache.records_freed_blocks) cache.freed_blocks.push_back({block.pool, BlockId(id)});
}

// The rows that others need of the block: those of a deeper unit or of a sibling, if there is one, or of the units
// before.
std::int32_t PrefixCache::rows_without(const PrefixUse& use, PrefixNodeId node, const UnitBlock& block,
                                       std::int32_t id) const noexcept {
  if (use.rows > block.rows) return use.rows;
  std::int32_t rows_above = 0;
  std::int32_t above = 0;
  for (UnitBlock in = block; in.rows_before > 0; ++above) {
    node = tree_[node].parent;
    in = blocks_.of_unit_before(tree_[node].depth, in);
    if (tree_.block_ids(node)[in.id] != id) break;
    rows_above = std::max(rows_above, in.rows);
    if (!block.inside_unit) return rows_above;  // siblings part in this very block: each has its own
  }
  return use.nodes > above + 1 ? use.rows : rows_above;
}

// ---- States -------------------------------------------------------------------------------------

// A free state, or that of the least useful unit; none if all are pinned or not any unit's yet.
std::int32_t PrefixCache::take_state() {
  if (free_states_.empty()) {
    PrefixNodeId least = kNoPrefixNode;
    for (const PrefixNodeId node : node_of_state_) {
      if (node == kNoPrefixNode || tree_[node].own_pins > 0) continue;
      if (least == kNoPrefixNode || tree_.usefulness(node) < tree_.usefulness(least)) least = node;
    }
    if (least == kNoPrefixNode) {
      ++stats_.states_refused;
      return kNoBoundaryState;
    }
    drop_state(least, PrefixRemoval::kSpace);
  }
  const std::int32_t state = free_states_.back();
  free_states_.pop_back();
  return state;
}

void PrefixCache::set_state(PrefixNodeId node, std::int32_t state, bool kept) {
  DSV4RT_CHECK(tree_[node].state == kNoBoundaryState);
  node_of_state_[static_cast<std::size_t>(state)] = node;
  tree_.set_state(node, state, kept);
  ++stats_.states_taken;
  note(PrefixEvent::Kind::kStateStored, node);
}

void PrefixCache::drop_state(PrefixNodeId node, PrefixRemoval why) {
  const std::int32_t state = tree_[node].state;
  note(PrefixEvent::Kind::kStateRemoved, node, why);
  tree_.set_state(node, kNoBoundaryState, false);
  node_of_state_[static_cast<std::size_t>(state)] = kNoPrefixNode;
  std::erase_if(boundary_copies_, [&](const BoundaryCopyPlan& copy) { return copy.state == state; });
  give_state(state);
  ++stats_.states_removed;
}

void PrefixCache::drop_copied_states() {
  while (!boundary_copies_.empty()) {
    const std::int32_t state = boundary_copies_.back().state;
    drop_state(node_of_state_[static_cast<std::size_t>(state)], PrefixRemoval::kSpace);
  }
}

// ---- What people ask ----------------------------------------------------------------------------

void PrefixCache::note(PrefixEvent::Kind kind, PrefixNodeId node, PrefixRemoval why) {
  if (!records_events_ || tree_[node].depth == 0) return;
  events_.push_back({.kind = kind,
                     .removal = why,
                     .node = node,
                     .end_tokens = std::int64_t{tree_[node].depth} * tree_.unit_tokens(),
                     .digest = tree_[node].digest,
                     .parent = tree_[tree_[node].parent].digest});
}

void PrefixCache::count_lookup(std::int64_t hit_tokens, std::int64_t missed_tokens) noexcept {
  ++stats_.lookups;
  stats_.hit_tokens += hit_tokens;
  stats_.missed_tokens += missed_tokens;
}

PrefixStats PrefixCache::stats() const noexcept {
  PrefixStats stats = stats_;
  stats.kept_units = tree_.units();
  stats.kept_states = std::count_if(node_of_state_.begin(), node_of_state_.end(),
                                    [](PrefixNodeId node) { return node != kNoPrefixNode; });
  for (PrefixNodeId node = 0; node < tree_.capacity(); ++node) {
    if (tree_.contains(node) && tree_[node].depth > 0 && tree_[node].pins > 0) ++stats.pinned_units;
  }
  return stats;
}

}  // namespace dsv4rt
