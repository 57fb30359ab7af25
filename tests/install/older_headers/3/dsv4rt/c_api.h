// The stable C interface: engine.h for programs that cannot or do not want to use C++.
//
// Rules that hold for every function unless it says otherwise:
//  * It returns a dsv4rt_status; results go to out parameters, which are written on success only.
//  * No C++ exception leaves it, it never prints and never ends the process.
//  * The text of a failure is dsv4rt_engine_last_error(); the library keeps no global state.
//  * A null pointer where the comment does not allow one is DSV4RT_INVALID_ARGUMENT.
//  * One thread at a time per engine, any thread; different engines are independent.
//  * Pointers that the caller passes are used during the call only.
//
// Binary compatibility: constants keep their values and functions their signatures. A struct that
// begins with struct_size may grow at its end, so the caller stores sizeof of the struct it was
// compiled with. 0 in a later added field means its default, and a library older than its caller
// refuses (DSV4RT_UNSUPPORTED) a field that it does not know unless it is 0. Other structs are frozen.
//
// docs/embedding.md is the guide, examples/c_decode.c a complete program.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dsv4rt/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Raised when something is added; a library serves every caller with a lower or equal number.
#define DSV4RT_C_API_VERSION 3

// The kind of failure; the values of StatusCode in status.h, where each is described.
typedef int32_t dsv4rt_status;
enum {
  DSV4RT_OK = 0,
  DSV4RT_INVALID_ARGUMENT = 1,
  DSV4RT_BAD_INPUT = 2,
  DSV4RT_NOT_FOUND = 3,
  DSV4RT_UNSUPPORTED = 4,
  DSV4RT_RESOURCE_EXHAUSTED = 5,
  DSV4RT_FAILED_PRECONDITION = 6,
  DSV4RT_STALE_HANDLE = 7,
  DSV4RT_MISMATCH = 8,
  DSV4RT_FAULTED = 9,   // an earlier failure left the engine in an unknown state: destroy it
  DSV4RT_INTERNAL = 10  // a defect of the library; calls that follow are DSV4RT_FAULTED
};

// BF16 as its 16 bits.
typedef uint16_t dsv4rt_bf16;

// An engine: the attention layers of a checkpoint and the cache they own.
typedef struct dsv4rt_engine dsv4rt_engine;

// A sequence of one engine; {0, 0} is never live. An id that was released stays refused
// (DSV4RT_STALE_HANDLE) when its index is used again.
typedef struct dsv4rt_sequence {
  uint32_t index;
  uint32_t generation;
} dsv4rt_sequence;

// Field by field the options of EngineOptions in engine.h, where each is described.
typedef struct dsv4rt_engine_options {
  size_t struct_size;        // set by dsv4rt_engine_options_init
  const char* checkpoint;    // directory; required
  const char* profile;       // "deepseek-v4" or "seed"
  const char* backend;       // "cpu" or "cuda"
  const char* row_format;    // "fp8_ds_mla", "fp8_row", "nvfp4" or "bf16"; null: the profile's
  const char* index_format;  // "mxfp4", "nvfp4", "fp8" or "bf16"; null: the profile's
  int32_t threads;           // 0: all cores
  int32_t first_layer;
  int32_t layer_count;         // 0: to the last layer
  int32_t max_sequences;       // default 1
  int64_t max_context_tokens;  // required
  int64_t pool_tokens;         // 0: max_sequences * max_context_tokens
  int32_t max_step_tokens;     // required
  int32_t csa_rows_per_block;
  int32_t hca_rows_per_block;
  int32_t draft_budget_tokens;
  int64_t memory_limit_bytes;  // 0: no limit
  // Since version 2.
  int32_t device;            // backend "cuda": ordinal
  int32_t max_graphs;        // captured steps kept; 0: every step runs eagerly
  int64_t max_graph_tokens;  // steps of more tokens run eagerly
  void* stream;              // cudaStream_t, the caller's; null: the engine makes one
  // Since version 3.
  int64_t nondeterministic;  // 1: EngineOptions::deterministic = false, faster long steps; 0: true
} dsv4rt_engine_options;

// What the engine holds; total = weights + workspace + cache, and cache = regions + block tables +
// step metadata.
typedef struct dsv4rt_memory {
  size_t struct_size;  // set by the caller
  int64_t total_bytes;
  int64_t weight_bytes;
  int64_t workspace_bytes;
  int64_t cache_bytes;
  int64_t block_table_bytes;
  int64_t step_metadata_bytes;
  double bytes_per_token;      // unpadded, all layers
  int64_t bytes_per_sequence;  // rings and compressor states, all layers
  int64_t sharing_unit_tokens;
  size_t region_count;  // for dsv4rt_engine_memory_region
} dsv4rt_memory;

// What a region of cache holds; the values of CacheRole in types.h.
enum {
  DSV4RT_ROLE_SWA_KV = 0,
  DSV4RT_ROLE_CSA_KV = 1,
  DSV4RT_ROLE_INDEX_K = 2,
  DSV4RT_ROLE_HCA_KV = 3,
  DSV4RT_ROLE_CSA_STATE = 4,
  DSV4RT_ROLE_INDEX_STATE = 5,
  DSV4RT_ROLE_HCA_STATE = 6
};

// One role's line of the memory plan, all its layers together.
typedef struct dsv4rt_memory_region {
  size_t struct_size;     // set by the caller
  const char* role_name;  // "SWA_KV", ...; constant
  int32_t role;           // DSV4RT_ROLE_...
  int32_t layers;
  double bytes_per_token;      // 0 for roles with a fixed size per sequence
  int64_t bytes_per_sequence;  // 0 for paged roles
  int64_t blocks_per_layer;    // paged roles, the null block included
  int64_t total_bytes;
} dsv4rt_memory_region;

// One sequence's part of a step: `tokens` consecutive rows of x, in the order of the entries.
typedef struct dsv4rt_step_entry {
  dsv4rt_sequence sequence;
  int32_t tokens;
} dsv4rt_step_entry;

typedef struct dsv4rt_step_options {
  size_t struct_size;     // set by the caller
  int64_t pad_to_tokens;  // rows of x including padding rows after the real ones; 0: no padding
  // Since version 2.
  int64_t capture;    // 1: dsv4rt_step_run runs the step as a captured graph where it can; 0: eagerly
  uint64_t hook_key;  // hooks that enqueue different work have different keys
} dsv4rt_step_options;

// What became of the steps given to dsv4rt_step_run.
typedef struct dsv4rt_graph_stats {
  size_t struct_size;  // set by the caller
  int64_t captures;    // graphs made
  int64_t replays;     // steps run by a graph
  int64_t eager_steps;
  int64_t evictions;   // graphs that left for another: with many, raise max_graphs or keep x in one place
  int64_t last_nodes;  // nodes of the graph that ran last
} dsv4rt_graph_stats;

// A prepared step. Plain values: copies name the same step.
typedef struct dsv4rt_step {
  uint64_t serial;
  int32_t tokens;        // rows of x and of the output, padding included
  int32_t valid_tokens;  // rows that belong to sequences; they come first
} dsv4rt_step;

// Called after each layer of dsv4rt_step_run. output [tokens, hidden_size] is the attention output of
// `layer`; the hook fills next_input [tokens, hidden_size] with the input of the next layer (null
// after the last one). Both belong to the engine and are backend memory. A result other than DSV4RT_OK
// ends the run with that status. The hook must not change the engine that runs it: other than queries,
// calls are DSV4RT_FAILED_PRECONDITION. It must return; a C++ exception ends the run as
// DSV4RT_INVALID_ARGUMENT, a longjmp or a thread exit is not survived.
typedef dsv4rt_status (*dsv4rt_layer_hook)(void* user_data, int32_t layer, const dsv4rt_bf16* output,
                                           dsv4rt_bf16* next_input);

// ---- Library ------------------------------------------------------------------------------------

// "major.minor.patch" of the library that runs, and the DSV4RT_C_API_VERSION it was built with.
DSV4RT_EXPORT const char* dsv4rt_version(void);
DSV4RT_EXPORT int32_t dsv4rt_c_api_version(void);
// "invalid argument", ...: constant; "unknown" for a number that is no status.
DSV4RT_EXPORT const char* dsv4rt_status_name(dsv4rt_status status);

// ---- Engine -------------------------------------------------------------------------------------

// Fills `options` with defaults. struct_size: sizeof(dsv4rt_engine_options) in the caller.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_options_init(dsv4rt_engine_options* options, size_t struct_size);

// Loads, plans, checks the plan, then allocates. On failure *engine is null and `message`
// [message_bytes] holds the text, cut to fit and always terminated; null with 0 bytes: no text wanted.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_create(const dsv4rt_engine_options* options, dsv4rt_engine** engine,
                                                 char* message, size_t message_bytes);
// Frees the engine, its sequences and an outstanding step. Null is accepted.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_destroy(dsv4rt_engine* engine);

// The text of the last call on this engine that failed: what, why, what is accepted. Empty if none
// did or `engine` is null. Valid until the next call that fails.
DSV4RT_EXPORT const char* dsv4rt_engine_last_error(const dsv4rt_engine* engine);

// d: values in a row of x and of the output.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_hidden_size(dsv4rt_engine* engine, int64_t* hidden_size);
// The loaded layers in order, numbered as in the model. *count is set even if layers [capacity] is too
// short (DSV4RT_INVALID_ARGUMENT); null with capacity 0 asks for the count.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_layers(dsv4rt_engine* engine, int32_t* layers, size_t capacity,
                                                 size_t* count);
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_memory(dsv4rt_engine* engine, dsv4rt_memory* memory);
// index < region_count.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_memory_region(dsv4rt_engine* engine, size_t index,
                                                        dsv4rt_memory_region* region);

// The stream that work is enqueued on (cudaStream_t); null with the CPU backend.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_stream(dsv4rt_engine* engine, void** stream);
// Backend memory for x, [max_step_tokens, hidden_size], at an address that stays: for captured steps.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_input(dsv4rt_engine* engine, dsv4rt_bf16** input);
// Waits until everything enqueued has run, and reports what failed in it.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_synchronize(dsv4rt_engine* engine);
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_graph_stats(dsv4rt_engine* engine, dsv4rt_graph_stats* stats);

// ---- Sequences ----------------------------------------------------------------------------------

// Whether dsv4rt_sequence_create with so many reserved tokens would succeed: DSV4RT_OK, or
// DSV4RT_RESOURCE_EXHAUSTED with a text that names the role that is short.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_can_admit(dsv4rt_engine* engine, int64_t tokens);
// An empty sequence. reserve_tokens > 0 sets blocks aside so that appends up to there cannot fail.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_create(dsv4rt_engine* engine, int64_t reserve_tokens,
                                                   dsv4rt_sequence* sequence);
// A second sequence with the parent's content; blocks are shared until one of the two writes to them.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_fork(dsv4rt_engine* engine, dsv4rt_sequence parent, int64_t reserve_tokens,
                                                 dsv4rt_sequence* child);
// Drops tokens from the end: to 0, or as far back as the rings still hold what the rest needs
// (DSV4RT_FAILED_PRECONDITION naming the earliest length otherwise).
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_truncate(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                     int64_t new_length);
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_release(dsv4rt_engine* engine, dsv4rt_sequence sequence);
// Tokens, those of an outstanding step included.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_length(dsv4rt_engine* engine, dsv4rt_sequence sequence, int64_t* length);

// ---- Steps --------------------------------------------------------------------------------------

// Appends tokens to sequences, all or nothing; each sequence may appear once. One step may be
// outstanding: it ends by dsv4rt_step_commit or dsv4rt_step_cancel. options: null for the defaults.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_prepare(dsv4rt_engine* engine, const dsv4rt_step_entry* entries, size_t count,
                                                const dsv4rt_step_options* options, dsv4rt_step* step);
// Runs one layer: x and out are two buffers of [step->tokens, hidden_size] in backend memory (host memory
// with the CPU backend), aligned as dsv4rt_bf16. Every layer runs exactly once per step, in any order.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_forward_layer(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t layer,
                                                      const dsv4rt_bf16* x, dsv4rt_bf16* out);
// Runs all layers in order; x [step->tokens, hidden_size] is the first layer's input. A step prepared with
// `capture` calls the hook only while a graph of its shape is recorded; see Engine::step in engine.h.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_run(dsv4rt_engine* engine, const dsv4rt_step* step, const dsv4rt_bf16* x,
                                            dsv4rt_layer_hook hook, void* user_data);
// Ends the step after every layer ran. accepted[i]: tokens of entry i that stay; null with count 0: all.
// Rejecting more than the draft budget allows is refused and changes nothing.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_commit(dsv4rt_engine* engine, const dsv4rt_step* step, const int32_t* accepted,
                                               size_t count);
// Ends the step at any point without keeping its tokens. Sequences whose rings were already overwritten
// too far to go back are emptied (length 0) and listed in emptied [*count]. `capacity` must be at least
// the step's number of entries; a smaller one is refused and the step stays outstanding.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_cancel(dsv4rt_engine* engine, const dsv4rt_step* step, dsv4rt_sequence* emptied,
                                               size_t capacity, size_t* count);

#ifdef __cplusplus
}
#endif
