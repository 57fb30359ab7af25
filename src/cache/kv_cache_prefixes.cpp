// KVCacheManager's calls about cached prefixes: arguments, refusals and what follows for sequences.
#include <algorithm>
#include <limits>
#include <string>

#include "base/check.h"
#include "cache/kv_cache_manager_impl.h"

namespace dsv4rt {
namespace {

Status no_prefix_cache(const char* operation) {
  return {StatusCode::kFailedPrecondition, std::string(operation) +
                                               ": this engine has no prefix cache; CacheLimits::boundary_states > 0 "
                                               "makes one"};
}

Status check_token_ids(const char* operation, std::span<const std::int32_t> token_ids) {
  const auto wrong = std::find_if(token_ids.begin(), token_ids.end(), [](std::int32_t id) { return id < 0; });
  if (wrong == token_ids.end()) return {};
  return {StatusCode::kInvalidArgument, std::string(operation) + ": token_ids[" +
                                            std::to_string(wrong - token_ids.begin()) +
                                            "] = " + std::to_string(*wrong) + "; accepted: 0 or more"};
}

Status check_policy(const PrefixPolicy& policy) {
  if (policy.interval_tokens >= 0 && policy.interval_tokens <= std::numeric_limits<std::int32_t>::max() / 2) return {};
  return {StatusCode::kInvalidArgument,
          "create_sequence: policy.interval_tokens = " + std::to_string(policy.interval_tokens) +
              "; accepted: 0 (only at the ends) or more"};
}

}  // namespace

// Length and high water of a sequence whose rings serve it as after a step of which every token was rejected.
void KVCacheManager::Impl::begin_at(std::int32_t slot, std::int32_t length, std::int32_t reserve_tokens) {
  SequenceRecord& record = sequences[slot];
  record.length = length;
  record.high_water = length + layout.formats().draft_budget_tokens + 1;
  record.reserve_tokens = reserve_tokens;
}

// Blocks of a long hit may be what reservations count on: then it is a shorter one.
Result<PrefixStart> KVCacheManager::Impl::begin_from(PrefixNodeId node, std::int32_t reserve_tokens,
                                                     std::int32_t prompt_tokens, const PrefixPolicy& policy,
                                                     ShorterHit shorter) {
  const std::int32_t slot = sequences.next_slot();
  Status refused;
  for (; node != kNoPrefixNode;
       node = shorter == ShorterHit::kAllowed ? prefixes->shallower_with_state(node) : kNoPrefixNode) {
    refused = prefixes->attach(*this, slot, node, reserve_tokens);
    if (!refused.ok()) continue;
    DSV4RT_CHECK(sequences.acquire() == slot);
    const std::int32_t length = prefixes->tree()[node].depth * prefixes->unit_tokens();
    begin_at(slot, length, reserve_tokens);
    prefixes->begin(slot, node, prompt_tokens, policy);
    return PrefixStart{.sequence = sequences.id(slot),
                       .hit_tokens = length,
                       .restore = {.slot = slot, .state = prefixes->tree()[node].state, .boundary = length}};
  }
  return refused;
}

Result<PrefixStart> KVCacheManager::create_sequence(std::span<const std::int32_t> token_ids,
                                                    const SequenceOptions& options) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (state.prefixes == nullptr) return no_prefix_cache("create_sequence with token ids");
  if (Status status = check_token_ids("create_sequence", token_ids); !status.ok()) return status;
  const PrefixPolicy policy = options.policy.value_or(state.prefix_policy);
  if (Status status = check_policy(policy); !status.ok()) return status;
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  if (tokens > state.limits.max_context_tokens) {
    return invalid("create_sequence: " + std::to_string(tokens) + " token ids; accepted: up to " +
                   std::to_string(state.limits.max_context_tokens) + " (max_context_tokens)");
  }
  if (Status status = state.can_begin("create_sequence", 0, 0); !status.ok()) return status;
  if (Status status = state.check_reserve(options.reserve_tokens); !status.ok()) return status;
  const auto reserve = static_cast<std::int32_t>(options.reserve_tokens);
  const PrefixNodeId node = state.prefixes->match(options.salt, token_ids, tokens - 1).with_state;
  if (node != kNoPrefixNode) {
    Result<PrefixStart> start =
        state.begin_from(node, reserve, static_cast<std::int32_t>(tokens), policy, Impl::ShorterHit::kAllowed);
    if (start.ok()) {
      state.prefixes->count_lookup(start->hit_tokens, tokens - start->hit_tokens);
      return start;
    }
  }
  Result<SequenceId> sequence = state.begin_sequence("create_sequence", 0, options.reserve_tokens);
  if (!sequence.ok()) return sequence.status();
  const PrefixNodeId root = state.prefixes->root(state, options.salt);
  const auto slot = static_cast<std::int32_t>(sequence->index);
  if (root != kNoPrefixNode) state.prefixes->begin(slot, root, static_cast<std::int32_t>(tokens), policy);
  state.prefixes->count_lookup(0, tokens);
  return PrefixStart{.sequence = *sequence};
}

Status KVCacheManager::Impl::check_boundary(const char* operation, std::int32_t slot, std::int64_t length,
                                            PrefixNodeId* node) const {
  if (length < 0 || length > sequences[slot].length) {
    return invalid(std::string(operation) + ": length = " + std::to_string(length) + "; accepted: 0 .. " +
                   std::to_string(sequences[slot].length) + " (the sequence's length)");
  }
  *node = prefixes->boundary_on_path(slot, length);
  if (*node != kNoPrefixNode) return {};
  std::int64_t nearest = 0;
  for (PrefixNodeId unit = prefixes->track(slot).node; unit != kNoPrefixNode; unit = prefixes->tree()[unit].parent) {
    const std::int64_t end = std::int64_t{prefixes->tree()[unit].depth} * prefixes->unit_tokens();
    if (prefixes->tree()[unit].state == kNoBoundaryState || end > length) continue;
    nearest = end;
    break;
  }
  return {StatusCode::kFailedPrecondition, std::string(operation) + ": no boundary state is kept at length " +
                                               std::to_string(length) + "; the nearest one below is at " +
                                               std::to_string(nearest)};
}

Result<PrefixStart> KVCacheManager::branch(SequenceId parent, std::int64_t length, std::int64_t reserve_tokens) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (state.prefixes == nullptr) return no_prefix_cache("branch");
  if (Status status = state.no_step_outstanding("branch"); !status.ok()) return status;
  const std::int32_t slot = state.sequences.find(parent);
  if (slot == SequenceTable::kNone) return state.sequences.stale(parent);
  if (Status status = state.check_reserve(reserve_tokens); !status.ok()) return status;
  if (Status status = state.slot_free(); !status.ok()) return status;
  PrefixNodeId node = kNoPrefixNode;
  if (Status status = state.check_boundary("branch", slot, length, &node); !status.ok()) return status;
  const PrefixTrack track = state.prefixes->track(slot);
  return state.begin_from(node, static_cast<std::int32_t>(reserve_tokens), track.prompt_tokens, track.policy,
                          Impl::ShorterHit::kRefused);
}

Result<BoundaryCopyPlan> KVCacheManager::truncate_to_boundary(SequenceId sequence, std::int64_t new_length) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (state.prefixes == nullptr) return no_prefix_cache("truncate");
  if (Status status = state.no_step_outstanding("truncate"); !status.ok()) return status;
  const std::int32_t slot = state.sequences.find(sequence);
  if (slot == SequenceTable::kNone) return state.sequences.stale(sequence);
  PrefixNodeId node = kNoPrefixNode;
  if (Status status = state.check_boundary("truncate", slot, new_length, &node); !status.ok()) return status;
  const auto length = static_cast<std::int32_t>(new_length);
  if (Status status = state.can_truncate(slot, length); !status.ok()) return status;
  state.truncate(slot, length);
  state.begin_at(slot, length, state.sequences[slot].reserve_tokens);
  return BoundaryCopyPlan{.slot = slot, .state = state.prefixes->tree()[node].state, .boundary = length};
}

Result<PrefixLookup> KVCacheManager::prefix_lookup(std::span<const std::int32_t> token_ids,
                                                   std::span<const std::byte> salt) const {
  if (impl_->prefixes == nullptr) return no_prefix_cache("prefix_lookup");
  if (Status status = check_token_ids("prefix_lookup", token_ids); !status.ok()) return status;
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  const PrefixCache::Match match = impl_->prefixes->match(salt, token_ids, tokens - 1);
  return PrefixLookup{.hit_tokens = impl_->prefix_tokens(match.with_state),
                      .matched_tokens = impl_->prefix_tokens(match.last)};
}

Result<std::int64_t> KVCacheManager::pin_prefix(std::span<const std::int32_t> token_ids,
                                                std::span<const std::byte> salt) {
  Impl& state = *impl_;
  if (state.prefixes == nullptr) return no_prefix_cache("pin_prefix");
  if (Status status = check_token_ids("pin_prefix", token_ids); !status.ok()) return status;
  if (Status status = state.no_step_outstanding("pin_prefix"); !status.ok()) return status;
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  const PrefixNodeId node = state.prefixes->match(salt, token_ids, tokens).with_state;
  if (node == kNoPrefixNode) return std::int64_t{0};
  if (Status status = state.prefixes->pin(state, node); !status.ok()) return status;
  return state.prefix_tokens(node);
}

Result<std::int64_t> KVCacheManager::unpin_prefix(std::span<const std::int32_t> token_ids,
                                                  std::span<const std::byte> salt) {
  Impl& state = *impl_;
  if (state.prefixes == nullptr) return no_prefix_cache("unpin_prefix");
  if (Status status = check_token_ids("unpin_prefix", token_ids); !status.ok()) return status;
  if (Status status = state.no_step_outstanding("unpin_prefix"); !status.ok()) return status;
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  PrefixNodeId node = state.prefixes->match(salt, token_ids, tokens).last;
  while (node != kNoPrefixNode && state.prefixes->tree()[node].own_pins == 0) {
    node = state.prefixes->tree()[node].parent;
  }
  if (node == kNoPrefixNode) return std::int64_t{0};
  state.prefixes->unpin(state, node);
  return state.prefix_tokens(node);
}

Result<std::int64_t> KVCacheManager::evict_prefix(std::span<const std::int32_t> token_ids,
                                                  std::span<const std::byte> salt) {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (state.prefixes == nullptr) return no_prefix_cache("evict_prefix");
  if (Status status = check_token_ids("evict_prefix", token_ids); !status.ok()) return status;
  if (Status status = state.no_step_outstanding("evict_prefix"); !status.ok()) return status;
  const auto tokens = static_cast<std::int64_t>(token_ids.size());
  const PrefixNodeId node = state.prefixes->match(salt, token_ids, tokens).last;
  if (node == kNoPrefixNode) return std::int64_t{0};
  return std::int64_t{state.prefixes->evict_branch(state, node)} * state.prefixes->unit_tokens();
}

Status KVCacheManager::clear_prefixes() {
  Impl& state = *impl_;
  state.freed_blocks.clear();
  if (state.prefixes == nullptr) return no_prefix_cache("clear_prefixes");
  if (Status status = state.no_step_outstanding("clear_prefixes"); !status.ok()) return status;
  state.prefixes->evict_all(state);
  return {};
}

// ---- Questions ----------------------------------------------------------------------------------

std::int64_t KVCacheManager::Impl::prefix_tokens(PrefixNodeId node) const noexcept {
  return node == kNoPrefixNode ? 0 : std::int64_t{prefixes->tree()[node].depth} * prefixes->unit_tokens();
}

std::int64_t KVCacheManager::prefix_unit_tokens() const noexcept {
  return impl_->prefixes == nullptr ? 0 : impl_->prefixes->unit_tokens();
}

PrefixStats KVCacheManager::prefix_stats() const {
  return impl_->prefixes == nullptr ? PrefixStats{} : impl_->prefixes->stats();
}

std::span<const PlannedCapture> KVCacheManager::captures() const noexcept {
  if (impl_->prefixes == nullptr || !impl_->step.active) return {};
  return impl_->prefixes->captures();
}

std::span<const BoundaryCopyPlan> KVCacheManager::boundary_copies() const noexcept {
  if (impl_->prefixes == nullptr) return {};
  return impl_->prefixes->boundary_copies();
}

void KVCacheManager::drop_boundary_copies() {
  if (impl_->prefixes != nullptr) impl_->prefixes->drop_copied_states();
}

std::size_t KVCacheManager::table_row(StateSlotId slot, std::span<std::int32_t> ids,
                                      std::span<std::int32_t> columns) const {
  std::size_t count = 0;
  for (std::size_t pool = 0; pool < impl_->allocators.size(); ++pool) {
    const KvCacheGroup& group = impl_->group_of(static_cast<std::int32_t>(pool));
    const auto pools = group.pools();
    const auto member = static_cast<std::size_t>(
        std::find(pools.begin(), pools.end(), static_cast<std::int32_t>(pool)) - pools.begin());
    const std::int32_t held = group.blocks(impl_->sequences[slot.value].length);
    columns[pool] = held;
    for (std::int32_t column = 0; column < held; ++column) {
      ids[count++] = group.table_entry(slot.value, column)[member];
    }
  }
  return count;
}

std::span<const PrefixEventRecord> KVCacheManager::prefix_events() const noexcept {
  if (impl_->prefixes == nullptr) return {};
  return impl_->prefixes->events();
}

std::span<const std::int32_t> KVCacheManager::event_token_ids(const PrefixEventRecord& event) const noexcept {
  const PrefixTree& tree = impl_->prefixes->tree();
  if (!tree.contains(event.node) || tree[event.node].digest != event.digest) return {};
  return tree.token_ids(event.node);
}

void KVCacheManager::clear_prefix_events() noexcept {
  if (impl_->prefixes != nullptr) impl_->prefixes->events().clear();
}

}  // namespace dsv4rt
