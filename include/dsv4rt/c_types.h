// Constants, structs and callbacks of the C interface, c_api.h, which says what rules they obey.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

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
  DSV4RT_FAULTED = 9,       // the device failed, now or earlier, or a defect was met: destroy the engine
  DSV4RT_INTERNAL = 10,     // a defect of the library; calls that follow are DSV4RT_FAULTED
  DSV4RT_BACKEND_LOST = 11  // other ranks failed or did not answer in time; calls that follow say so too
};

// BF16 as its 16 bits.
typedef uint16_t dsv4rt_bf16;

// An engine: the attention layers of a checkpoint and the cache they own.
typedef struct dsv4rt_engine dsv4rt_engine;

// What dsv4rt_nccl_unique_id writes.
enum { DSV4RT_NCCL_ID_BYTES = 128 };

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

// The ways in which engines of several processes (ranks) run every step together: ParallelOptions in engine.h.
enum { DSV4RT_PARALLEL_TENSOR = 1, DSV4RT_PARALLEL_CONTEXT = 2 };

// Since version 11. Which ranks an engine works with: ParallelOptions, MpiOptions and NcclOptions, where each field is
// described. Every rank creates its engine with the same options but for rank and device; with backend "cpu" over MPI,
// which the caller has initialised, with backend "cuda" over NCCL.
typedef struct dsv4rt_parallel_options {
  size_t struct_size;  // set by dsv4rt_parallel_options_init
  int32_t kind;        // DSV4RT_PARALLEL_...; required
  int32_t rank;        // this process is that one, 0 to size - 1
  int32_t size;        // required with backend "cuda"; 0 with backend "cpu": both are the communicator's
  int32_t context_min_tokens;      // DSV4RT_PARALLEL_CONTEXT: shorter steps are computed by every rank
  double deadline_seconds;         // every exchange ends within it
  double create_deadline_seconds;  // dsv4rt_engine_create waits so long for the other ranks
  const void* mpi_communicator;    // backend "cpu": MPI_Comm*, which is duplicated; null: MPI_COMM_WORLD
  const void* unique_id;           // backend "cuda": what dsv4rt_nccl_unique_id gave one of the ranks; null otherwise
  int64_t context_own_outputs;     // 1: outputs stay where they were computed (context_share_outputs false); 0: shared
} dsv4rt_parallel_options;

// A message for people: EngineOptions::on_warning in engine.h, which says when. `text` is valid during the callback. It
// may come before dsv4rt_engine_create has returned and out of dsv4rt_engine_destroy. What it must not do is as for
// dsv4rt_layer_hook.
typedef void (*dsv4rt_warning_callback)(void* user_data, const char* text);

// Field by field the options of EngineOptions in engine.h, where each is described.
typedef struct dsv4rt_engine_options {
  size_t struct_size;        // set by dsv4rt_engine_options_init
  const char* checkpoint;    // directory; required but for engines from tensors or with another's weights
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
  int64_t nondeterministic;  // 0; 1, products by cuBLASLt, is offered no more: linear_precision "fp8" is faster
  // Since version 5.
  const dsv4rt_prefix_options* prefix_cache;  // null: no prefix cache
  // Since version 6.
  int32_t allow_non_finite_weights;  // 1: weights that are NaN or infinite are loaded; 0: refused
  int32_t check_outputs;             // 1: dsv4rt_step_output_check tells whose outputs are not finite
  // Since version 7.
  dsv4rt_warning_callback on_warning;  // null: nobody is told
  void* warning_user_data;             // given to on_warning
  // Since version 11.
  const dsv4rt_parallel_options* parallel;  // null: one rank
  // Since version 12.
  const char* linear_precision;  // "exact", "fp8", "nvfp4": EngineOptions::linear_precision; null: "exact"
} dsv4rt_engine_options;

// Where a tensor's bytes are; the values of TensorMemory in memory_checkpoint.h.
enum { DSV4RT_TENSOR_ON_HOST = 0, DSV4RT_TENSOR_ON_DEVICE = 1 };

// One tensor of a checkpoint in the caller's memory: MemoryTensor in memory_checkpoint.h. In an array, every element
// has the struct_size of the first, which is also their distance.
typedef struct dsv4rt_tensor {
  size_t struct_size;    // set by the caller
  const char* name;      // a checkpoint's, released or of transformers; others are skipped
  const char* dtype;     // spelt as in safetensors files: "BF16", "F32", "F8_E4M3", "F8_E8M0", "U8" (NVFP4), ...
  const int64_t* shape;  // [dimensions]; may be null without dimensions
  size_t dimensions;
  const void* data;  // row-major without gaps, any alignment
  size_t bytes;      // what dtype and shape make
  int64_t memory;    // DSV4RT_TENSOR_ON_HOST, or DSV4RT_TENSOR_ON_DEVICE (since version 9, with backend "cuda")
} dsv4rt_tensor;

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
  // Since version 13. 1: rank hand_over_to alone has the step's sequences once it is committed (StepOptions in step.h);
  // 0: every rank has them, and hand_over_to is 0.
  int64_t hand_over;
  int64_t hand_over_to;
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
  // Since version 9. Saving: 0 for all of the sequence; otherwise an increment on what was last saved of it, whose
  // length this is (dsv4rt_sequence_state.saved_tokens).
  int64_t base_tokens;
} dsv4rt_snapshot_options;

// Takes the next bytes [count] of a snapshot, in order; they are valid during the call. A result other than DSV4RT_OK
// ends the save with that status. What it must not do is as for dsv4rt_layer_hook.
typedef dsv4rt_status (*dsv4rt_snapshot_sink)(void* user_data, const void* bytes, size_t count);
// Since version 9. Fills `bytes` [count] from its beginning on with what comes next of a snapshot, and *given with how
// many it gave; 0: there are no more. Results and rules are those of dsv4rt_snapshot_sink.
typedef dsv4rt_status (*dsv4rt_snapshot_source)(void* user_data, void* bytes, size_t count, size_t* given);

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

// ---- State as data, since version 7: engine_state.h describes every field ----

typedef struct dsv4rt_engine_state {
  size_t struct_size;  // set by the caller
  int32_t max_sequences;
  int32_t live_sequences;
  uint64_t step_serial;  // the outstanding step's; 0: none
  int64_t tokens_left;
} dsv4rt_engine_state;

// Blocks of one paged role, in each of its layers: total = free + used + cached + pinned.
typedef struct dsv4rt_role_state {
  size_t struct_size;  // set by the caller
  int32_t layers;      // 0: the engine has no such role, or it is not paged, and every other field is 0
  int32_t tokens_per_block;
  int64_t total_blocks;
  int64_t free_blocks;
  int64_t used_blocks;
  int64_t cached_blocks;
  int64_t pinned_blocks;
  int64_t reserved_blocks;
} dsv4rt_role_state;

typedef struct dsv4rt_sequence_state {
  size_t struct_size;  // set by the caller
  int64_t length;
  int64_t reserve_tokens;
  int64_t earliest_truncation;
  int64_t slot;       // row in block tables, and number of the ring
  int64_t blocks[7];  // index: DSV4RT_ROLE_...
  // Since version 9: the base_tokens of the next increment; 0: it has to be saved whole.
  int64_t saved_tokens;
  // Since version 13: the rank that alone has the sequence; -1: every rank.
  int64_t held_by;
} dsv4rt_sequence_state;

// What keeps a step from being prepared. missing_blocks 0: nothing does.
typedef struct dsv4rt_block_shortage {
  size_t struct_size;  // set by the caller
  int32_t role;        // DSV4RT_ROLE_...
  int32_t layer;
  int64_t missing_blocks;
  int64_t missing_bytes;
  int64_t entry;  // first entry whose blocks are not there
} dsv4rt_block_shortage;

// Dimensions and formats. Texts are constant.
typedef struct dsv4rt_config {
  size_t struct_size;  // set by the caller
  int64_t hidden_size;
  int64_t layers;  // loaded ones
  int64_t num_attention_heads;
  int64_t head_dim;
  int64_t q_lora_rank;
  int64_t o_lora_rank;
  int64_t o_groups;
  int64_t sliding_window;
  int64_t index_n_heads;
  int64_t index_head_dim;
  int64_t index_topk;
  int64_t max_position_embeddings;
  int64_t draft_budget_tokens;
  int64_t csa_rows_per_block;
  int64_t hca_rows_per_block;
  const char* row_format;
  const char* index_format;
} dsv4rt_config;

enum { DSV4RT_LAYER_SWA = 0, DSV4RT_LAYER_CSA = 1, DSV4RT_LAYER_HCA = 2 };

typedef struct dsv4rt_layer_info {
  size_t struct_size;     // set by the caller
  const char* kind_name;  // "swa", "csa" or "hca"; constant
  int32_t layer;
  int32_t kind;   // DSV4RT_LAYER_...
  int32_t ratio;  // tokens per compressed row; 0: none
  int32_t indexer;
  int32_t overlap;
  int32_t compressed_rope;  // 1: compress_rope_theta with YaRN
} dsv4rt_layer_info;

// Where one layer keeps a role, for kernels of the caller: CacheView in engine_state.h, which says when content is
// valid. Pointers stay the same as long as the engine lives; nothing of it may be written.
typedef struct dsv4rt_cache_view {
  size_t struct_size;  // set by the caller
  const void* base;    // backend memory
  int64_t block_stride_bytes;
  int64_t block_count;
  int32_t rows_per_block;
  int32_t data_bytes;   // a row's; row r lies at r * data_bytes of its block
  int32_t scale_bytes;  // 0: none; otherwise at scale_offset + r * scale_bytes
  int32_t tokens_per_row;
  int64_t scale_offset;
  const char* format;          // "fp8_ds_mla", ...; "f32_state": compressor states; constant
  const int32_t* block_table;  // [max_sequences][block_table_columns], backend memory; null: a ring per slot
  int64_t block_table_columns;
} dsv4rt_cache_view;

// Since version 8. MetricLabel in engine_state.h, as terminated texts.
typedef struct dsv4rt_metric_label {
  const char* name;
  const char* value;
} dsv4rt_metric_label;

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

// What a dsv4rt_layer_hook gets, with the step and the stream to enqueue on: LayerOutput in engine.h.
typedef struct dsv4rt_layer_output {
  size_t struct_size;  // set by the library
  const dsv4rt_step* step;
  const dsv4rt_bf16* output;
  dsv4rt_bf16* next_input;
  void* stream;  // cudaStream_t; null with the CPU backend
  int64_t layer;
} dsv4rt_layer_output;
typedef dsv4rt_status (*dsv4rt_layer_output_hook)(void* user_data, const dsv4rt_layer_output* output);

#ifdef __cplusplus
}  // extern "C"
#endif
