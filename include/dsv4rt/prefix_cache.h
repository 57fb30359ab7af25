// Prefix cache: content that a sequence may begin with instead of computing it. docs/cache.md "Prefix cache".
//
// A prefix is a run of token ids from position 0, cut into units (Engine::prefix_unit_tokens). What the cache keeps of
// it are blocks of compressed rows and, at some unit boundaries, a boundary state: the window rows and compressor rows
// that the next token reads. A sequence can begin at a boundary whose rows are all kept and that has a state; anything
// less is a miss. What it then holds is byte for byte what computing the same tokens would have left
// (but with LinearPrecision::kNvfp4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "dsv4rt/types.h"

namespace dsv4rt {

// Where boundary states are taken. Each costs MemoryPlan::boundary_state_bytes / CacheLimits::boundary_states bytes.
struct PrefixPolicy {
  // Every so many tokens, rounded up to whole units; 1: at every unit; 0: only at the ends below.
  std::int32_t interval_tokens = 2048;
  bool prompt_end = true;   // last boundary below the last token of the ids given to create_sequence
  bool output_end = true;   // last boundary that a sequence reached after its prompt
  bool fork_points = true;  // last boundary at a fork, if the rings still serve it
};

// What leaves a full cache first. Whatever a sequence continues from leaves last, and pinned prefixes never.
enum class PrefixEviction : std::uint8_t {
  // Ends of prefixes without a boundary state, where nothing can begin; then the least recently used ones, a prefix
  // that was reused counting as used one turnover of the whole cache later.
  kUseful,
  kLru,  // the least recently used end of a prefix, whatever it is good for: for comparison
};

struct PrefixEvent;

struct PrefixCacheOptions {
  PrefixPolicy policy;  // policy of sequences that bring none
  PrefixEviction eviction = PrefixEviction::kUseful;
  // Most tokens that prefixes of one salt may keep; the least useful of the same salt leave first. 0: no quota.
  std::int64_t tenant_quota_tokens = 0;
  // Told after the call that changed the cache, from the same thread. It must not change the engine; what it throws
  // is dropped.
  std::function<void(const PrefixEvent&)> on_event;
  bool event_token_ids = false;  // events carry the token ids of their unit
};

// How a sequence with token ids begins.
struct SequenceOptions {
  // Prefixes are shared among sequences of equal salt only; tenants that must not learn of each other need different
  // ones. Any bytes; empty is a salt like any other.
  std::span<const std::byte> salt = {};
  std::int64_t reserve_tokens = 0;          // blocks set aside, as Engine::create_sequence does
  std::optional<PrefixPolicy> policy = {};  // unset: PrefixCacheOptions::policy
};

struct SequenceStart {
  SequenceId sequence;
  std::int64_t hit_tokens = 0;  // length that the sequence begins with; tokens from there on are to be run
};

struct PrefixLookup {
  std::int64_t hit_tokens = 0;      // what create_sequence would begin with, blocks permitting
  std::int64_t matched_tokens = 0;  // kept without a gap, whether or not a boundary state follows
};

// SHA-256 of everything that identifies a prefix up to a unit's end: checkpoint, cache layout, salt and token ids.
using PrefixDigest = std::array<std::byte, 32>;

enum class PrefixRemoval : std::uint8_t {
  kSpace,    // blocks or bookkeeping were needed
  kQuota,    // the salt's quota
  kRequest,  // evict_prefix or clear_prefixes
};

// A unit, or the boundary state at its end, came or went.
struct PrefixEvent {
  enum class Kind : std::uint8_t { kUnitStored, kUnitRemoved, kStateStored, kStateRemoved };
  Kind kind = Kind::kUnitStored;
  PrefixDigest digest{};
  PrefixDigest parent{};        // digest of the unit before; of the salt for the first one
  std::int64_t end_tokens = 0;  // length of the prefix up to the unit's end
  // Ids of the unit's tokens when it is stored, if PrefixCacheOptions::event_token_ids asks for them; else empty.
  std::span<const std::int32_t> token_ids;
  std::span<const CacheRole> roles;               // what of the cache came or went
  const char* medium = "";                        // "cpu" or "cuda": where it lies
  PrefixRemoval removal = PrefixRemoval::kSpace;  // for the removals
};

// Counts since the engine began; `kept` ones are present values.
struct PrefixStats {
  std::int64_t lookups = 0;        // sequences created with token ids
  std::int64_t hit_tokens = 0;     // tokens that these did not have to run
  std::int64_t missed_tokens = 0;  // and those that they had to
  std::int64_t units_stored = 0;
  std::int64_t units_removed_for_space = 0;
  std::int64_t units_removed_by_quota = 0;
  std::int64_t units_removed_on_request = 0;
  std::int64_t states_taken = 0;
  std::int64_t states_removed = 0;      // for another state, or with their unit
  std::int64_t states_refused = 0;      // every state was pinned
  std::int64_t sequences_detached = 0;  // whose further tokens are not kept: their last unit was removed
  std::int64_t kept_units = 0;
  std::int64_t kept_states = 0;
  std::int64_t pinned_units = 0;
};

}  // namespace dsv4rt
