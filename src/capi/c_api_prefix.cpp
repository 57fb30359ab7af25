// The C interface: the prefix cache, its options, its events and sequences that begin from it.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/try.h"
#include "capi/c_api_constants.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"

namespace dsv4rt::c_api {
namespace {

static_assert(equals(DSV4RT_UNIT_STORED, PrefixEvent::Kind::kUnitStored) &&
              equals(DSV4RT_UNIT_REMOVED, PrefixEvent::Kind::kUnitRemoved) &&
              equals(DSV4RT_STATE_STORED, PrefixEvent::Kind::kStateStored) &&
              equals(DSV4RT_STATE_REMOVED, PrefixEvent::Kind::kStateRemoved));
static_assert(equals(DSV4RT_REMOVED_FOR_SPACE, PrefixRemoval::kSpace) &&
              equals(DSV4RT_REMOVED_BY_QUOTA, PrefixRemoval::kQuota) &&
              equals(DSV4RT_REMOVED_ON_REQUEST, PrefixRemoval::kRequest));

Status refused(const std::string& field, std::int64_t value, const char* accepted) {
  return {StatusCode::kInvalidArgument, field + ": " + std::to_string(value) + "; accepted: " + accepted};
}

Result<bool> read_flag(const char* field, std::int32_t value) {
  if (value != 0 && value != 1) return refused(field, value, "0 or 1");
  return value == 1;
}

void tell(dsv4rt_prefix_event_callback callback, void* user_data, const PrefixEvent& event) {
  std::array<std::int32_t, kCacheRoleCount> roles{};
  const std::size_t role_count = std::min(event.roles.size(), roles.size());
  std::transform(event.roles.begin(), event.roles.begin() + static_cast<std::ptrdiff_t>(role_count), roles.begin(),
                 [](CacheRole role) { return static_cast<std::int32_t>(role); });
  dsv4rt_prefix_event told{};
  told.struct_size = sizeof(told);
  told.kind = static_cast<std::int32_t>(event.kind);
  told.removal = static_cast<std::int32_t>(event.removal);
  static_assert(sizeof(told.digest) == sizeof(PrefixDigest) && sizeof(told.parent) == sizeof(PrefixDigest));
  std::memcpy(told.digest, event.digest.data(), sizeof(told.digest));
  std::memcpy(told.parent, event.parent.data(), sizeof(told.parent));
  told.end_tokens = event.end_tokens;
  told.token_ids = event.token_ids.data();
  told.token_id_count = event.token_ids.size();
  told.roles = roles.data();
  told.role_count = role_count;
  told.medium = event.medium;
  callback(user_data, &told);
}

}  // namespace

dsv4rt_prefix_policy default_prefix_policy() {
  const PrefixPolicy defaults;
  return {.struct_size = sizeof(dsv4rt_prefix_policy),
          .interval_tokens = defaults.interval_tokens,
          .prompt_end = defaults.prompt_end ? 1 : 0,
          .output_end = defaults.output_end ? 1 : 0,
          .fork_points = defaults.fork_points ? 1 : 0};
}

dsv4rt_prefix_options default_prefix_options() {
  const PrefixCacheOptions defaults;
  return {.struct_size = sizeof(dsv4rt_prefix_options),
          .boundary_states = CacheLimits{}.boundary_states,
          .event_token_ids = defaults.event_token_ids ? 1 : 0,
          .tenant_quota_tokens = defaults.tenant_quota_tokens,
          .policy = nullptr,
          .on_event = nullptr,
          .user_data = nullptr};
}

Result<PrefixPolicy> read_prefix_policy(const dsv4rt_prefix_policy* given) {
  dsv4rt_prefix_policy known = default_prefix_policy();
  if (given != nullptr) DSV4RT_RETURN_IF_ERROR(read_struct(given, "dsv4rt_prefix_policy", known));
  if (known.interval_tokens < 0) {
    return refused("dsv4rt_prefix_policy.interval_tokens", known.interval_tokens, "0 (only at the ends) or more");
  }
  PrefixPolicy policy;
  policy.interval_tokens = known.interval_tokens;
  DSV4RT_ASSIGN_OR_RETURN(policy.prompt_end, read_flag("dsv4rt_prefix_policy.prompt_end", known.prompt_end));
  DSV4RT_ASSIGN_OR_RETURN(policy.output_end, read_flag("dsv4rt_prefix_policy.output_end", known.output_end));
  DSV4RT_ASSIGN_OR_RETURN(policy.fork_points, read_flag("dsv4rt_prefix_policy.fork_points", known.fork_points));
  return policy;
}

Status read_prefix_options(const dsv4rt_prefix_options& given, EngineOptions& options) {
  dsv4rt_prefix_options known = default_prefix_options();
  DSV4RT_RETURN_IF_ERROR(read_struct(&given, "dsv4rt_prefix_options", known));
  if (known.boundary_states < 0) {
    return refused("dsv4rt_prefix_options.boundary_states", known.boundary_states, "0 (no prefix cache) or more");
  }
  if (known.tenant_quota_tokens < 0) {
    return refused("dsv4rt_prefix_options.tenant_quota_tokens", known.tenant_quota_tokens, "0 (no quota) or more");
  }
  options.limits.boundary_states = known.boundary_states;
  PrefixCacheOptions& prefixes = options.prefix_cache;
  prefixes.tenant_quota_tokens = known.tenant_quota_tokens;
  DSV4RT_ASSIGN_OR_RETURN(prefixes.policy, read_prefix_policy(known.policy));
  DSV4RT_ASSIGN_OR_RETURN(prefixes.event_token_ids,
                          read_flag("dsv4rt_prefix_options.event_token_ids", known.event_token_ids));
  if (known.on_event != nullptr) {
    prefixes.on_event = [callback = known.on_event, user_data = known.user_data](const PrefixEvent& event) {
      tell(callback, user_data, event);
    };
  }
  return {};
}

namespace {

// Token ids and salt as the caller names them.
struct PrefixName {
  std::span<const std::int32_t> token_ids;
  std::span<const std::byte> salt;
};

Result<PrefixName> read_name(const char* function, const std::int32_t* token_ids, std::size_t count, const void* salt,
                             std::size_t salt_bytes) {
  if (token_ids == nullptr && count > 0) return null_argument(function, "token_ids");
  if (salt == nullptr && salt_bytes > 0) return null_argument(function, "salt");
  // Lengths are signed inside: a count that is no length is a negative number of the caller's.
  constexpr auto kMaxCount = static_cast<std::size_t>(PTRDIFF_MAX) / sizeof(std::int32_t);
  for (const auto& [name, size] : {std::pair{"count", count}, std::pair{"salt_bytes", salt_bytes}}) {
    if (size <= kMaxCount) continue;
    return Status{StatusCode::kInvalidArgument,
                  std::string(function) + ": " + name + " = " + std::to_string(size) + " is no size of an array"};
  }
  return PrefixName{.token_ids = {token_ids, count}, .salt = {static_cast<const std::byte*>(salt), salt_bytes}};
}

Status create(dsv4rt_engine& handle, const std::int32_t* token_ids, std::size_t count,
              const dsv4rt_sequence_options* given, dsv4rt_sequence* sequence, std::int64_t* hit_tokens) {
  constexpr const char* kName = "dsv4rt_sequence_create_with_ids";
  if (sequence == nullptr) return null_argument(kName, "sequence");
  if (hit_tokens == nullptr) return null_argument(kName, "hit_tokens");
  dsv4rt_sequence_options known{};
  if (given != nullptr) DSV4RT_RETURN_IF_ERROR(read_struct(given, "dsv4rt_sequence_options", known));
  DSV4RT_ASSIGN_OR_RETURN(const PrefixName name, read_name(kName, token_ids, count, known.salt, known.salt_bytes));
  SequenceOptions options{.salt = name.salt, .reserve_tokens = known.reserve_tokens, .policy = {}};
  if (known.policy != nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(options.policy, read_prefix_policy(known.policy));
  }
  DSV4RT_ASSIGN_OR_RETURN(const SequenceStart start, handle.engine->create_sequence(name.token_ids, options));
  *sequence = {start.sequence.index, start.sequence.generation};
  *hit_tokens = start.hit_tokens;
  return {};
}

// pin, unpin and evict: a number of tokens for a named prefix.
using PrefixCall = Result<std::int64_t> (Engine::*)(std::span<const std::int32_t>, std::span<const std::byte>);

dsv4rt_status call_with_name(dsv4rt_engine* engine, const char* function, PrefixCall body,
                             const std::int32_t* token_ids, std::size_t count, const void* salt, std::size_t salt_bytes,
                             std::int64_t* tokens) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (tokens == nullptr) return null_argument(function, "tokens");
    DSV4RT_ASSIGN_OR_RETURN(const PrefixName name, read_name(function, token_ids, count, salt, salt_bytes));
    DSV4RT_ASSIGN_OR_RETURN(*tokens, ((*handle.engine).*body)(name.token_ids, name.salt));
    return {};
  });
}

dsv4rt_prefix_stats stats_of(const PrefixStats& stats) {
  return {.struct_size = sizeof(dsv4rt_prefix_stats),
          .lookups = stats.lookups,
          .hit_tokens = stats.hit_tokens,
          .missed_tokens = stats.missed_tokens,
          .units_stored = stats.units_stored,
          .units_removed_for_space = stats.units_removed_for_space,
          .units_removed_by_quota = stats.units_removed_by_quota,
          .units_removed_on_request = stats.units_removed_on_request,
          .states_taken = stats.states_taken,
          .states_removed = stats.states_removed,
          .states_refused = stats.states_refused,
          .sequences_detached = stats.sequences_detached,
          .kept_units = stats.kept_units,
          .kept_states = stats.kept_states,
          .pinned_units = stats.pinned_units};
}

}  // namespace
}  // namespace dsv4rt::c_api

using dsv4rt::Engine;
using dsv4rt::Result;
using dsv4rt::SequenceId;
using dsv4rt::Status;
using dsv4rt::c_api::call;
using dsv4rt::c_api::call_with_name;
using dsv4rt::c_api::null_argument;
using dsv4rt::c_api::Use;

dsv4rt_status dsv4rt_prefix_options_init(dsv4rt_prefix_options* options, size_t struct_size) {
  if (options == nullptr) return DSV4RT_INVALID_ARGUMENT;
  dsv4rt::c_api::ErrorText error;
  return dsv4rt::c_api::run_guarded(error, [&] {
    return dsv4rt::c_api::write_struct(options, struct_size, "dsv4rt_prefix_options",
                                       dsv4rt::c_api::default_prefix_options());
  });
}

dsv4rt_status dsv4rt_prefix_policy_init(dsv4rt_prefix_policy* policy, size_t struct_size) {
  if (policy == nullptr) return DSV4RT_INVALID_ARGUMENT;
  dsv4rt::c_api::ErrorText error;
  return dsv4rt::c_api::run_guarded(error, [&] {
    return dsv4rt::c_api::write_struct(policy, struct_size, "dsv4rt_prefix_policy",
                                       dsv4rt::c_api::default_prefix_policy());
  });
}

dsv4rt_status dsv4rt_sequence_create_with_ids(dsv4rt_engine* engine, const int32_t* token_ids, size_t count,
                                              const dsv4rt_sequence_options* options, dsv4rt_sequence* sequence,
                                              int64_t* hit_tokens) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    return dsv4rt::c_api::create(handle, token_ids, count, options, sequence, hit_tokens);
  });
}

dsv4rt_status dsv4rt_sequence_branch(dsv4rt_engine* engine, dsv4rt_sequence parent, int64_t length,
                                     int64_t reserve_tokens, dsv4rt_sequence* child) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) -> Status {
    if (child == nullptr) return null_argument("dsv4rt_sequence_branch", "child");
    const Result<SequenceId> created = handle.engine->branch(dsv4rt::c_api::id_of(parent), length, reserve_tokens);
    if (created.ok()) *child = {created->index, created->generation};
    return created.status();
  });
}

dsv4rt_status dsv4rt_engine_prefix_unit_tokens(dsv4rt_engine* engine, int64_t* tokens) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (tokens == nullptr) return null_argument("dsv4rt_engine_prefix_unit_tokens", "tokens");
    *tokens = handle.engine->prefix_unit_tokens();
    return Status{};
  });
}

dsv4rt_status dsv4rt_prefix_lookup(dsv4rt_engine* engine, const int32_t* token_ids, size_t count, const void* salt,
                                   size_t salt_bytes, int64_t* hit_tokens, int64_t* matched_tokens) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) -> Status {
    if (hit_tokens == nullptr) return null_argument("dsv4rt_prefix_lookup", "hit_tokens");
    if (matched_tokens == nullptr) return null_argument("dsv4rt_prefix_lookup", "matched_tokens");
    DSV4RT_ASSIGN_OR_RETURN(const dsv4rt::c_api::PrefixName name,
                            dsv4rt::c_api::read_name("dsv4rt_prefix_lookup", token_ids, count, salt, salt_bytes));
    DSV4RT_ASSIGN_OR_RETURN(const dsv4rt::PrefixLookup found, handle.engine->prefix_lookup(name.token_ids, name.salt));
    *hit_tokens = found.hit_tokens;
    *matched_tokens = found.matched_tokens;
    return {};
  });
}

dsv4rt_status dsv4rt_prefix_pin(dsv4rt_engine* engine, const int32_t* token_ids, size_t count, const void* salt,
                                size_t salt_bytes, int64_t* tokens) {
  return call_with_name(engine, "dsv4rt_prefix_pin", &Engine::pin_prefix, token_ids, count, salt, salt_bytes, tokens);
}

dsv4rt_status dsv4rt_prefix_unpin(dsv4rt_engine* engine, const int32_t* token_ids, size_t count, const void* salt,
                                  size_t salt_bytes, int64_t* tokens) {
  return call_with_name(engine, "dsv4rt_prefix_unpin", &Engine::unpin_prefix, token_ids, count, salt, salt_bytes,
                        tokens);
}

dsv4rt_status dsv4rt_prefix_evict(dsv4rt_engine* engine, const int32_t* token_ids, size_t count, const void* salt,
                                  size_t salt_bytes, int64_t* tokens) {
  return call_with_name(engine, "dsv4rt_prefix_evict", &Engine::evict_prefix, token_ids, count, salt, salt_bytes,
                        tokens);
}

dsv4rt_status dsv4rt_prefix_clear(dsv4rt_engine* engine) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) { return handle.engine->clear_prefixes(); });
}

dsv4rt_status dsv4rt_engine_prefix_stats(dsv4rt_engine* engine, dsv4rt_prefix_stats* stats) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) {
    if (stats == nullptr) return null_argument("dsv4rt_engine_prefix_stats", "stats");
    return dsv4rt::c_api::write_struct(stats, stats->struct_size, "dsv4rt_prefix_stats",
                                       dsv4rt::c_api::stats_of(handle.engine->prefix_stats()));
  });
}
