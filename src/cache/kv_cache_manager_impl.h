// What a KVCacheManager is made of: the state and the checks that its calls share. Private to src/cache.
#pragma once

#include <string>
#include <vector>

#include "cache/cache_state.h"
#include "cache/invalid.h"
#include "cache/kv_cache_manager.h"

namespace dsv4rt {

struct KVCacheManager::Impl : CacheState {
  using CacheState::CacheState;
  PrefixPolicy prefix_policy;  // policy of sequences that bring none

  [[nodiscard]] Status no_step_outstanding(const char* operation) const {
    if (!step.active) return {};
    return {StatusCode::kFailedPrecondition, std::string(operation) + ": step " + std::to_string(step.serial) +
                                                 " is outstanding; commit it or roll it back first"};
  }
  [[nodiscard]] Status step_outstanding(const char* operation, std::uint64_t serial) const {
    if (step.active && step.serial == serial) return {};
    return {StatusCode::kFailedPrecondition,
            std::string(operation) + ": step " + std::to_string(serial) + " is not outstanding; " +
                (step.active ? "step " + std::to_string(step.serial) + " is" : std::string("no step is"))};
  }
  [[nodiscard]] Status check_reserve(std::int64_t tokens) const {
    if (tokens >= 0 && tokens <= limits.max_context_tokens) return {};
    return invalid("reserve_tokens = " + std::to_string(tokens) + "; accepted: 0 .. " +
                   std::to_string(limits.max_context_tokens) + " (max_context_tokens)");
  }
  [[nodiscard]] Status slot_free() const {
    if (sequences.live() < sequences.capacity()) return {};
    return {StatusCode::kResourceExhausted,
            "all " + std::to_string(sequences.capacity()) + " sequence slots (max_sequences) are taken"};
  }
  [[nodiscard]] Status can_begin(const char* operation, std::int64_t length, std::int64_t reserve_tokens) const;
  [[nodiscard]] Result<SequenceId> begin_sequence(const char* operation, std::int64_t length,
                                                  std::int64_t reserve_tokens);
  // New blocks of the slot's sequence for columns [first, end), which the pools have.
  void take_blocks(KvCacheGroup& group, std::int32_t slot, std::int32_t first, std::int32_t end);
  [[nodiscard]] Status can_pay_fork(std::int32_t parent, std::int32_t reserve_tokens) const;
  void share_content(std::int32_t parent, std::int32_t child);
  // Fills `segments` with the batch; *rows: rows of x, padding included.
  [[nodiscard]] Status resolve_batch(std::span<const StepEntry> batch, const StepOptions& options,
                                     std::vector<StepSegment>& segments, std::int32_t* rows);
  [[nodiscard]] Status resolve_entry(const StepEntry& entry, std::vector<StepSegment>& segments);
  [[nodiscard]] Status check_accepted(std::span<const std::int32_t> accepted) const;

  // kv_cache_prefixes.cpp
  enum class ShorterHit : std::uint8_t { kAllowed, kRefused };
  void begin_at(std::int32_t slot, std::int32_t length, std::int32_t reserve_tokens);
  [[nodiscard]] Result<PrefixStart> begin_from(PrefixNodeId node, std::int32_t reserve_tokens,
                                               std::int32_t prompt_tokens, const PrefixPolicy& policy,
                                               ShorterHit shorter);
  [[nodiscard]] Status check_boundary(const char* operation, std::int32_t slot, std::int64_t length,
                                      PrefixNodeId* node) const;
  [[nodiscard]] std::int64_t prefix_tokens(PrefixNodeId node) const noexcept;
};

}  // namespace dsv4rt
