// The C interface: library, engine and sequences. Steps are in c_api_step.cpp.
#include "dsv4rt/c_api.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "cache/cache_layout.h"
#include "capi/c_api_constants.h"
#include "capi/c_api_handle.h"
#include "capi/c_api_structs.h"

namespace dsv4rt::c_api {
namespace {

static_assert(equals(DSV4RT_OK, StatusCode::kOk) && equals(DSV4RT_INVALID_ARGUMENT, StatusCode::kInvalidArgument) &&
              equals(DSV4RT_BAD_INPUT, StatusCode::kBadInput) && equals(DSV4RT_NOT_FOUND, StatusCode::kNotFound) &&
              equals(DSV4RT_UNSUPPORTED, StatusCode::kUnsupported) &&
              equals(DSV4RT_RESOURCE_EXHAUSTED, StatusCode::kResourceExhausted) &&
              equals(DSV4RT_FAILED_PRECONDITION, StatusCode::kFailedPrecondition) &&
              equals(DSV4RT_STALE_HANDLE, StatusCode::kStaleHandle) && equals(DSV4RT_MISMATCH, StatusCode::kMismatch) &&
              equals(DSV4RT_FAULTED, StatusCode::kFaulted) && equals(DSV4RT_INTERNAL, StatusCode::kInternal) &&
              equals(DSV4RT_BACKEND_LOST, StatusCode::kBackendLost));
static_assert(equals(DSV4RT_ROLE_SWA_KV, CacheRole::kSwaKv) && equals(DSV4RT_ROLE_CSA_KV, CacheRole::kCsaKv) &&
              equals(DSV4RT_ROLE_INDEX_K, CacheRole::kIndexK) && equals(DSV4RT_ROLE_HCA_KV, CacheRole::kHcaKv) &&
              equals(DSV4RT_ROLE_CSA_STATE, CacheRole::kCsaState) &&
              equals(DSV4RT_ROLE_INDEX_STATE, CacheRole::kIndexState) &&
              equals(DSV4RT_ROLE_HCA_STATE, CacheRole::kHcaState));

Status list_layers(const Engine& engine, int32_t* layers, std::size_t capacity, std::size_t* count) {
  if (count == nullptr) return null_argument("dsv4rt_engine_layers", "count");
  const std::span<const LayerId> loaded = engine.layers();
  *count = loaded.size();
  if (layers == nullptr && capacity == 0) return {};
  if (layers == nullptr) return null_argument("dsv4rt_engine_layers", "layers");
  if (capacity < loaded.size()) {
    return {StatusCode::kInvalidArgument, "dsv4rt_engine_layers: capacity " + std::to_string(capacity) + "; " +
                                              std::to_string(loaded.size()) + " layers are loaded"};
  }
  std::transform(loaded.begin(), loaded.end(), layers, [](LayerId layer) { return layer.value; });
  return {};
}

dsv4rt_memory memory_of(const EngineMemory& memory) {
  dsv4rt_memory values{};
  values.total_bytes = memory.total_bytes;
  values.weight_bytes = memory.weight_bytes;
  values.workspace_bytes = memory.workspace_bytes;
  values.cache_bytes = memory.cache.total_bytes;
  values.block_table_bytes = memory.cache.block_table_bytes;
  values.step_metadata_bytes = memory.cache.step_metadata_bytes;
  values.bytes_per_token = memory.cache.bytes_per_token;
  values.bytes_per_sequence = memory.cache.bytes_per_sequence;
  values.sharing_unit_tokens = memory.cache.sharing_unit_tokens;
  values.region_count = memory.cache.regions.size();
  values.scratch_bytes = memory.scratch_bytes;
  values.graph_bytes = memory.graph_bytes;
  values.prefix_unit_tokens = memory.cache.prefix_unit_tokens;
  values.bytes_per_boundary_state = memory.cache.bytes_per_boundary_state;
  values.boundary_state_bytes = memory.cache.boundary_state_bytes;
  values.table_row_bytes = memory.cache.table_row_bytes;
  return values;
}

dsv4rt_memory_region region_of(const PlannedRegion& region) {
  dsv4rt_memory_region values{};
  values.role_name = cache_role_name(region.role).data();  // a string literal
  values.role = static_cast<std::int32_t>(region.role);
  values.layers = region.layers;
  values.bytes_per_token = region.bytes_per_token;
  values.bytes_per_sequence = region.bytes_per_sequence;
  values.blocks_per_layer = region.blocks_per_layer;
  values.total_bytes = region.total_bytes;
  return values;
}

Status store_sequence(const Result<SequenceId>& created, dsv4rt_sequence* target) {
  if (created.ok()) *target = {created->index, created->generation};
  return created.status();
}

}  // namespace
}  // namespace dsv4rt::c_api

using dsv4rt::Status;
using dsv4rt::StatusCode;
using dsv4rt::c_api::call;
using dsv4rt::c_api::null_argument;
using dsv4rt::c_api::Use;

const char* dsv4rt_version(void) {
  return DSV4RT_VERSION;
}

int32_t dsv4rt_c_api_version(void) {
  return DSV4RT_C_API_VERSION;
}

const char* dsv4rt_status_name(dsv4rt_status status) {
  if (status < DSV4RT_OK || status > DSV4RT_BACKEND_LOST) return "unknown";
  return dsv4rt::status_code_name(static_cast<StatusCode>(status)).data();  // a string literal
}

dsv4rt_status dsv4rt_engine_options_init(dsv4rt_engine_options* options, size_t struct_size) {
  if (options == nullptr) return DSV4RT_INVALID_ARGUMENT;
  dsv4rt::c_api::ErrorText error;
  return dsv4rt::c_api::run_guarded(error, [&] {
    return dsv4rt::c_api::write_struct(options, struct_size, "dsv4rt_engine_options",
                                       dsv4rt::c_api::default_engine_options());
  });
}

dsv4rt_status dsv4rt_engine_destroy(dsv4rt_engine* engine) {
  if (engine == nullptr) return DSV4RT_OK;
  if (engine->in_hook) return call(engine, Use::kChange, [](dsv4rt_engine&) { return Status{}; });
  const std::uint64_t warnings = engine->warnings;
  engine->engine.reset();  // warns when it finds its cache overwritten
  const bool intact = engine->warnings == warnings;
  delete engine;
  return intact ? DSV4RT_OK : DSV4RT_INTERNAL;
}

const char* dsv4rt_engine_last_error(const dsv4rt_engine* engine) {
  return engine == nullptr ? "" : engine->error.c_str();
}

dsv4rt_status dsv4rt_engine_hidden_size(dsv4rt_engine* engine, int64_t* hidden_size) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (hidden_size == nullptr) return null_argument("dsv4rt_engine_hidden_size", "hidden_size");
    *hidden_size = handle.engine->config().hidden_size;
    return Status{};
  });
}

dsv4rt_status dsv4rt_engine_layers(dsv4rt_engine* engine, int32_t* layers, size_t capacity, size_t* count) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    return dsv4rt::c_api::list_layers(*handle.engine, layers, capacity, count);
  });
}

dsv4rt_status dsv4rt_engine_memory(dsv4rt_engine* engine, dsv4rt_memory* memory) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (memory == nullptr) return null_argument("dsv4rt_engine_memory", "memory");
    return dsv4rt::c_api::write_struct(memory, memory->struct_size, "dsv4rt_memory",
                                       dsv4rt::c_api::memory_of(handle.engine->memory()));
  });
}

dsv4rt_status dsv4rt_engine_memory_region(dsv4rt_engine* engine, size_t index, dsv4rt_memory_region* region) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (region == nullptr) return null_argument("dsv4rt_engine_memory_region", "region");
    const auto& regions = handle.engine->memory().cache.regions;
    if (index >= regions.size()) {
      return Status{StatusCode::kInvalidArgument, "dsv4rt_engine_memory_region: index " + std::to_string(index) +
                                                      "; there are " + std::to_string(regions.size()) + " regions"};
    }
    return dsv4rt::c_api::write_struct(region, region->struct_size, "dsv4rt_memory_region",
                                       dsv4rt::c_api::region_of(regions[index]));
  });
}

dsv4rt_status dsv4rt_engine_stream(dsv4rt_engine* engine, void** stream) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (stream == nullptr) return null_argument("dsv4rt_engine_stream", "stream");
    *stream = handle.engine->stream();
    return Status{};
  });
}

dsv4rt_status dsv4rt_engine_input(dsv4rt_engine* engine, dsv4rt_bf16** input) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (input == nullptr) return null_argument("dsv4rt_engine_input", "input");
    *input = handle.engine->input();
    return Status{};
  });
}

dsv4rt_status dsv4rt_engine_synchronize(dsv4rt_engine* engine) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) { return handle.engine->synchronize(); });
}

dsv4rt_status dsv4rt_engine_graph_stats(dsv4rt_engine* engine, dsv4rt_graph_stats* stats) {
  return call(engine, Use::kFact, [&](dsv4rt_engine& handle) {
    if (stats == nullptr) return null_argument("dsv4rt_engine_graph_stats", "stats");
    const dsv4rt::GraphStats values = handle.engine->graph_stats();
    return dsv4rt::c_api::write_struct(stats, stats->struct_size, "dsv4rt_graph_stats",
                                       dsv4rt_graph_stats{.struct_size = sizeof(dsv4rt_graph_stats),
                                                          .captures = values.captures,
                                                          .replays = values.replays,
                                                          .eager_steps = values.eager_steps,
                                                          .evictions = values.evictions,
                                                          .last_nodes = values.last_nodes});
  });
}

dsv4rt_status dsv4rt_engine_can_admit(dsv4rt_engine* engine, int64_t tokens) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) { return handle.engine->can_admit(tokens); });
}

dsv4rt_status dsv4rt_sequence_create(dsv4rt_engine* engine, int64_t reserve_tokens, dsv4rt_sequence* sequence) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (sequence == nullptr) return null_argument("dsv4rt_sequence_create", "sequence");
    return dsv4rt::c_api::store_sequence(handle.engine->create_sequence(reserve_tokens), sequence);
  });
}

dsv4rt_status dsv4rt_sequence_claim(dsv4rt_engine* engine, dsv4rt_sequence sequence) {
  return call(engine, Use::kChange,
              [&](dsv4rt_engine& handle) { return handle.engine->claim(dsv4rt::c_api::id_of(sequence)); });
}

dsv4rt_status dsv4rt_sequence_fork(dsv4rt_engine* engine, dsv4rt_sequence parent, int64_t reserve_tokens,
                                   dsv4rt_sequence* child) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    if (child == nullptr) return null_argument("dsv4rt_sequence_fork", "child");
    return dsv4rt::c_api::store_sequence(handle.engine->fork(dsv4rt::c_api::id_of(parent), reserve_tokens), child);
  });
}

dsv4rt_status dsv4rt_sequence_truncate(dsv4rt_engine* engine, dsv4rt_sequence sequence, int64_t new_length) {
  return call(engine, Use::kChange, [&](dsv4rt_engine& handle) {
    return handle.engine->truncate(dsv4rt::c_api::id_of(sequence), new_length);
  });
}

dsv4rt_status dsv4rt_sequence_release(dsv4rt_engine* engine, dsv4rt_sequence sequence) {
  return call(engine, Use::kChange,
              [&](dsv4rt_engine& handle) { return handle.engine->release(dsv4rt::c_api::id_of(sequence)); });
}

dsv4rt_status dsv4rt_sequence_length(dsv4rt_engine* engine, dsv4rt_sequence sequence, int64_t* length) {
  return call(engine, Use::kQuery, [&](dsv4rt_engine& handle) {
    if (length == nullptr) return null_argument("dsv4rt_sequence_length", "length");
    const auto known = handle.engine->length(dsv4rt::c_api::id_of(sequence));
    if (known.ok()) *length = *known;
    return known.status();
  });
}
