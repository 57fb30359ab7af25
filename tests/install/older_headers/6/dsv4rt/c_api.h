// The stable C interface: engine.h for programs that cannot or do not want to use C++.
//
// Rules that hold for every function unless it says otherwise:
//  * It returns a dsv4rt_status; results go to out parameters, which are written on success only.
//  * No C++ exception leaves it, it never prints and never ends the process.
//  * A call that fails has changed nothing unless it says otherwise; that holds for DSV4RT_RESOURCE_EXHAUSTED too,
//  which
//    a lack of host memory gives, if need be with a shorter text. Only a device fault and a defect latch the engine:
//    every later call that could fail answers DSV4RT_FAULTED with the first cause as its text.
//  * The text of a failure is dsv4rt_engine_last_error(); the library keeps no global state but a
//    count of engines, which tells their handles apart.
//  * A null pointer where the comment does not allow one is DSV4RT_INVALID_ARGUMENT.
//  * One thread at a time per engine, any thread; different engines are independent, on one device or on several.
//  * The calling thread's current CUDA device is the same afterwards.
//  * Pointers that the caller passes are used during the call only, but for callbacks and their user data.
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
#define DSV4RT_C_API_VERSION 6

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
  DSV4RT_FAULTED = 9,   // the device failed, now or earlier, or a defect was met: destroy the engine
  DSV4RT_INTERNAL = 10  // a defect of the library; calls that follow are DSV4RT_FAULTED
};

// BF16 as its 16 bits.
typedef uint16_t dsv4rt_bf16;

// An engine: the attention layers of a checkpoint and the cache they own.
typedef struct dsv4rt_engine dsv4rt_engine;

// A sequence of one engine; {0, 0} is never live. An id that was released stays refused
// (DSV4RT_STALE_HANDLE) when its index is used again, and other engines of the process refuse it.
typedef struct dsv4rt_sequence {
  uint32_t index;
  uint32_t generation;
} dsv4rt_sequence;

// Where boundary states are taken: PrefixPolicy in prefix_cache.h, where each field is described.
typedef struct dsv4rt_prefix_policy {
  size_t struct_size;       // set by dsv4rt_prefix_policy_init
  int32_t interval_tokens;  // 0: only at the ends below; 1: at every unit
  int32_t prompt_end;       // 0 or 1, as the next two
  int32_t output_end;
  int32_t fork_points;
} dsv4rt_prefix_policy;

enum { DSV4RT_UNIT_STORED = 0, DSV4RT_UNIT_REMOVED = 1, DSV4RT_STATE_STORED = 2, DSV4RT_STATE_REMOVED = 3 };
enum { DSV4RT_REMOVED_FOR_SPACE = 0, DSV4RT_REMOVED_BY_QUOTA = 1, DSV4RT_REMOVED_ON_REQUEST = 2 };

// A unit of the prefix cache, or the boundary state at its end, came or went: PrefixEvent in prefix_cache.h. Everything
// that it points to is valid during the callback only.
typedef struct dsv4rt_prefix_event {
  size_t struct_size;  // set by the library
  int32_t kind;        // DSV4RT_UNIT_STORED, ...
  int32_t removal;     // DSV4RT_REMOVED_..., of the removals
  uint8_t digest[32];  // names the prefix up to the unit's end
  uint8_t parent[32];  // the digest before it: the unit's before, or the salt's
  int64_t end_tokens;  // length of the prefix up to the unit's end
  const int32_t* token_ids;
  size_t token_id_count;  // 0 unless dsv4rt_prefix_options.event_token_ids
  const int32_t* roles;   // DSV4RT_ROLE_...: what of the cache came or went
  size_t role_count;
  const char* medium;  // "cpu" or "cuda"; constant
} dsv4rt_prefix_event;

// Called at the end of the call that changed the cache, from the same thread. It must not change the engine: other than
// queries, calls are DSV4RT_FAILED_PRECONDITION. It must return; a C++ exception is dropped.
typedef void (*dsv4rt_prefix_event_callback)(void* user_data, const dsv4rt_prefix_event* event);

// The prefix cache: PrefixCacheOptions and CacheLimits::boundary_states.
typedef struct dsv4rt_prefix_options {
  size_t struct_size;                  // set by dsv4rt_prefix_options_init
  int32_t boundary_states;             // states it may keep, each dsv4rt_memory.bytes_per_boundary_state; 0: no cache
  int32_t event_token_ids;             // 1: events carry the token ids of their unit
  int64_t tenant_quota_tokens;         // most that prefixes of one salt may keep; 0: no quota
  const dsv4rt_prefix_policy* policy;  // what sequences get that bring none; null: the defaults
  dsv4rt_prefix_event_callback on_event;  // null: nobody is told
  void* user_data;                        // given to on_event
} dsv4rt_prefix_options;

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
  // Since version 5.
  const dsv4rt_prefix_options* prefix_cache;  // null: no prefix cache
  // Since version 6.
  int32_t allow_non_finite_weights;  // 1: weights that are NaN or infinite are loaded; 0: refused
  int32_t check_outputs;             // 1: dsv4rt_step_output_check tells whose outputs are not finite
} dsv4rt_engine_options;

// What the engine holds; total = weights + workspace + scratch + graphs + cache, and cache = regions + block
// tables + step metadata + boundary states + table row.
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
  size_t region_count;  // number of regions that dsv4rt_engine_memory_region() describes
  // Since version 4.
  int64_t scratch_bytes;  // what the largest single operation needs for itself
  int64_t graph_bytes;    // most that captured graphs take; 0 without capture
  // Since version 5.
  int64_t prefix_unit_tokens;        // prefixes are cached by units of so many tokens
  int64_t bytes_per_boundary_state;  // also without a prefix cache
  int64_t boundary_state_bytes;      // all that may be kept; 0 without a prefix cache
  int64_t table_row_bytes;           // to begin a sequence from a prefix; 0 without a prefix cache
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
  // Since version 5. token_ids[i]: ids of entry i's tokens, [entries[i].tokens], read during dsv4rt_step_prepare; null
  // where there are none, which ends the caching of that sequence. Null: no entry has any.
  const int32_t* const* token_ids;
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

// How a sequence with token ids begins: SequenceOptions in prefix_cache.h.
typedef struct dsv4rt_sequence_options {
  size_t struct_size;                  // set by the caller
  const void* salt;                    // [salt_bytes]: prefixes are shared among sequences of equal salt only
  size_t salt_bytes;                   // 0: the empty salt, one like any other
  int64_t reserve_tokens;              // sets blocks aside: dsv4rt_sequence_create
  const dsv4rt_prefix_policy* policy;  // null: the engine's
} dsv4rt_sequence_options;

// How a snapshot is saved and restored: SnapshotOptions in engine.h.
typedef struct dsv4rt_snapshot_options {
  size_t struct_size;  // set by the caller
  const void* key;     // [key_bytes]: authenticates the snapshot (HMAC-SHA-256); null with 0 bytes: nothing does
  size_t key_bytes;    // 16 and more
} dsv4rt_snapshot_options;

// Takes the next bytes [count] of a snapshot, in order; they are valid during the call. A result other than DSV4RT_OK
// ends the save with that status. What it must not do is as for dsv4rt_layer_hook.
typedef dsv4rt_status (*dsv4rt_snapshot_sink)(void* user_data, const void* bytes, size_t count);

// Counts since the engine began; kept and pinned ones are present values. PrefixStats in prefix_cache.h.
typedef struct dsv4rt_prefix_stats {
  size_t struct_size;     // set by the caller
  int64_t lookups;        // sequences created with token ids
  int64_t hit_tokens;     // tokens that these did not have to run
  int64_t missed_tokens;  // and those that they had to
  int64_t units_stored;
  int64_t units_removed_for_space;
  int64_t units_removed_by_quota;
  int64_t units_removed_on_request;
  int64_t states_taken;
  int64_t states_removed;
  int64_t states_refused;      // every state was pinned
  int64_t sequences_detached;  // whose further tokens are not kept
  int64_t kept_units;
  int64_t kept_states;
  int64_t pinned_units;
} dsv4rt_prefix_stats;

// A prepared step. Plain values: copies name the same step.
typedef struct dsv4rt_step {
  uint64_t serial;
  int32_t tokens;        // rows of x and of the output, padding included
  int32_t valid_tokens;  // rows that belong to sequences; they come first
} dsv4rt_step;

// Called after each layer of dsv4rt_step_run. output [tokens, hidden_size] is the attention output of
// `layer`; the hook fills next_input [tokens, hidden_size] with the input of the next layer (null
// after the last one). Both belong to the engine and are backend memory. A result other than DSV4RT_OK
// ends the run with that status and does not latch. The hook must not change the engine that runs it: other than
// queries, calls are DSV4RT_FAILED_PRECONDITION. It must return; a C++ exception ends the run as
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

// The same for the prefix cache; its boundary_states are 0 and have to be set.
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_options_init(dsv4rt_prefix_options* options, size_t struct_size);
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_policy_init(dsv4rt_prefix_policy* policy, size_t struct_size);

// Loads, plans, checks the plan, then allocates. On failure *engine is null and `message`
// [message_bytes] holds the text, cut to fit and always terminated; null with 0 bytes: no text wanted.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_create(const dsv4rt_engine_options* options, dsv4rt_engine** engine,
                                                 char* message, size_t message_bytes);
// Frees the engine, its sequences and an outstanding step. Null is accepted. DSV4RT_INTERNAL: everything is freed, but
// a debug build found that something had written outside of its part of the cache.
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
// Drops tokens from the end: to 0, as far back as the rings still hold what the rest needs, or to a length at which a
// boundary state of the sequence is kept (DSV4RT_FAILED_PRECONDITION naming the earliest or nearest length otherwise).
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_truncate(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                     int64_t new_length);
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_release(dsv4rt_engine* engine, dsv4rt_sequence sequence);
// Tokens, those of an outstanding step included.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_length(dsv4rt_engine* engine, dsv4rt_sequence sequence, int64_t* length);

// ---- Snapshots ----------------------------------------------------------------------------------
// A sequence's cache as bytes that describe themselves, between steps. Engine::save_sequence and restore_sequence in
// engine.h say what binds a snapshot to its checkpoint and what is refused. options: null for the defaults.

// What dsv4rt_sequence_save would write.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_snapshot_bytes(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                           const dsv4rt_snapshot_options* options, int64_t* bytes);
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_save(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                 const dsv4rt_snapshot_options* options, dsv4rt_snapshot_sink sink,
                                                 void* user_data);
// A new sequence out of a snapshot [bytes], all or nothing.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_restore(dsv4rt_engine* engine, const void* snapshot, size_t bytes,
                                                    int64_t reserve_tokens, const dsv4rt_snapshot_options* options,
                                                    dsv4rt_sequence* sequence);

// ---- Prefix cache -------------------------------------------------------------------------------
// Between steps. DSV4RT_FAILED_PRECONDITION without dsv4rt_engine_options.prefix_cache, DSV4RT_INVALID_ARGUMENT for a
// negative token id. token_ids and salt may be null if they have no elements. docs/cache.md "Prefix cache".

// A sequence that begins with what is cached of token_ids [count], at most all but the last. *hit_tokens: its length;
// the tokens from there on are given to steps with their ids (dsv4rt_step_options.token_ids) and become cached in turn.
// options: null for the defaults.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_create_with_ids(dsv4rt_engine* engine, const int32_t* token_ids,
                                                            size_t count, const dsv4rt_sequence_options* options,
                                                            dsv4rt_sequence* sequence, int64_t* hit_tokens);
// A sequence that begins with the first `length` tokens of another, where a boundary state is kept
// (DSV4RT_FAILED_PRECONDITION naming the nearest one below otherwise).
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_branch(dsv4rt_engine* engine, dsv4rt_sequence parent, int64_t length,
                                                   int64_t reserve_tokens, dsv4rt_sequence* child);
// The shortest prefix that can be cached, of which every other is a multiple; 0 without a prefix cache.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_prefix_unit_tokens(dsv4rt_engine* engine, int64_t* tokens);
// What a sequence with these ids would begin with, and what is kept without a gap; changes nothing.
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_lookup(dsv4rt_engine* engine, const int32_t* token_ids, size_t count,
                                                 const void* salt, size_t salt_bytes, int64_t* hit_tokens,
                                                 int64_t* matched_tokens);
// Keeps the longest prefix of these ids that a sequence can begin with until it is unpinned as often. *tokens: its
// length, 0 if there is none. DSV4RT_RESOURCE_EXHAUSTED when reservations count on its blocks.
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_pin(dsv4rt_engine* engine, const int32_t* token_ids, size_t count,
                                              const void* salt, size_t salt_bytes, int64_t* tokens);
// Undoes one pin of the longest pinned prefix of these ids. *tokens: its length, 0 if there is none.
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_unpin(dsv4rt_engine* engine, const int32_t* token_ids, size_t count,
                                                const void* salt, size_t salt_bytes, int64_t* tokens);
// Forgets units from the end of what is cached of these ids, up to one that is pinned or that other prefixes share.
// *tokens: how many were forgotten. Sequences keep what they hold.
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_evict(dsv4rt_engine* engine, const int32_t* token_ids, size_t count,
                                                const void* salt, size_t salt_bytes, int64_t* tokens);
// Forgets everything that is not pinned.
DSV4RT_EXPORT dsv4rt_status dsv4rt_prefix_clear(dsv4rt_engine* engine);
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_prefix_stats(dsv4rt_engine* engine, dsv4rt_prefix_stats* stats);

// ---- Steps --------------------------------------------------------------------------------------

// Begins a step: appends tokens to sequences, all or nothing; each sequence may appear once. One step may be
// outstanding: it ends by dsv4rt_step_commit or dsv4rt_step_cancel. A step whose tokens or valid_tokens the caller
// altered is DSV4RT_INVALID_ARGUMENT, another serial DSV4RT_FAILED_PRECONDITION. options: null for the defaults.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_prepare(dsv4rt_engine* engine, const dsv4rt_step_entry* entries, size_t count,
                                                const dsv4rt_step_options* options, dsv4rt_step* step);
// Runs one layer: x and out are two buffers of [step->tokens, hidden_size], rows without gaps, in backend memory: host
// memory aligned as dsv4rt_bf16 with the CPU backend, device memory at multiples of 16 bytes with "cuda"
// (DSV4RT_INVALID_ARGUMENT otherwise). Every layer runs exactly once per step, in any order. A layer that failed has
// not run: it may be run again, unless it had begun to write the cache. The step can then only be cancelled
// (DSV4RT_FAILED_PRECONDITION).
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_forward_layer(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t layer,
                                                      const dsv4rt_bf16* x, dsv4rt_bf16* out);
// Runs all layers in order; x [step->tokens, hidden_size] is the first layer's input. A step prepared with
// `capture` calls the hook only while a graph of its shape is recorded; see Engine::step in engine.h, also for what
// a failure leaves.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_run(dsv4rt_engine* engine, const dsv4rt_step* step, const dsv4rt_bf16* x,
                                            dsv4rt_layer_hook hook, void* user_data);
// Ends the step after every layer ran. accepted[i]: tokens of entry i that stay; null with count 0: all.
// As many as the draft budget can always be rejected; more are DSV4RT_INVALID_ARGUMENT when the rings no longer hold
// what the tokens before them left, and the step stays outstanding.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_commit(dsv4rt_engine* engine, const dsv4rt_step* step, const int32_t* accepted,
                                               size_t count);
// Ends the step at any point without keeping its tokens. Sequences whose rings were already overwritten
// too far to go back are emptied (length 0), lose their reservation and are listed in emptied [*count]. `capacity` must
// be at least the step's number of entries; a smaller one is refused. Whenever it fails the step stays outstanding, and
// the list is never lost; only a latched engine cannot end its step.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_cancel(dsv4rt_engine* engine, const dsv4rt_step* step, dsv4rt_sequence* emptied,
                                               size_t capacity, size_t* count);
// Which entries of a step that was committed or cancelled had outputs that are not finite: OutputCheck in engine.h, of
// the last eight steps. *known: 0 while the step's work has not run, 1 afterwards. *count is set even if entries
// [capacity] is too short (DSV4RT_INVALID_ARGUMENT); null with capacity 0 asks for the count.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_output_check(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t* known,
                                                     int32_t* entries, size_t capacity, size_t* count);
// Entries found so since the engine began, as far as they are known.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_non_finite_entries(dsv4rt_engine* engine, int64_t* entries);

#ifdef __cplusplus
}
#endif
