// The stable C interface: engine.h for programs that cannot or do not want to use C++.
//
// Rules that hold for every function unless it says otherwise:
//  * It returns a dsv4rt_status; results go to out parameters, which are written on success only.
//  * No C++ exception leaves it, it never prints and never ends the process.
//  * A call that fails has changed nothing unless it says otherwise, also with DSV4RT_RESOURCE_EXHAUSTED, which a lack
//    of host memory gives, if need be with a shorter text. Only a device fault and a defect latch the engine: every
//    later call that could fail answers DSV4RT_FAULTED with the first cause as its text.
//  * The text of a failure is dsv4rt_engine_last_error(). Global is a count of engines, which tells handles apart.
//  * A null pointer where the comment does not allow one is DSV4RT_INVALID_ARGUMENT.
//  * One thread at a time per engine, any thread; different engines are independent, on one device or on several.
//  * The calling thread's current CUDA device is the same afterwards.
//  * Pointers that the caller passes are used during the call only, but for callbacks and their user data.
//
// Binary compatibility: constants keep their values and functions their signatures. A struct that begins with
// struct_size may grow at its end, so the caller stores sizeof of the struct it was compiled with. 0 in a later added
// field means its default, and a library older than its caller refuses (DSV4RT_UNSUPPORTED) a field that it does not
// know unless it is 0. Other structs are frozen.
//
// docs/embedding.md is the guide, examples/c_decode.c a complete program.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "dsv4rt/c_types.h"
#include "dsv4rt/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Raised when something is added; a library serves every caller with a lower or equal number.
//  2  captured steps, devices and streams     5  prefix cache
//  3  nondeterministic                        6  snapshots, allow_non_finite_weights, output checks
//  4  scratch_bytes, graph_bytes              7  tensors in memory, state as data, cache views, warnings, layer outputs
//  8  metrics                                9  increments of snapshots, snapshots from a source, shared weights,
//                                               tensors of a device
// 10  accepted counts on the device          11  engines of several ranks
// 12  linear_precision                       13  steps that hand sequences over to a rank,
//                                               claim
// 14  linear_precision "nvfp4"; nondeterministic = 1 is refused
#define DSV4RT_C_API_VERSION 14

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

// Since version 11. The same for an engine of several ranks; its kind is 0 and has to be set.
DSV4RT_EXPORT dsv4rt_status dsv4rt_parallel_options_init(dsv4rt_parallel_options* options, size_t struct_size);
// Since version 11. Bytes by which ranks with backend "cuda" find each other: one rank makes them, and the caller gives
// them to all. id [id_bytes]: DSV4RT_NCCL_ID_BYTES or more. DSV4RT_UNSUPPORTED where NCCL is not installed or not part
// of the build; `message` as for dsv4rt_engine_create.
DSV4RT_EXPORT dsv4rt_status dsv4rt_nccl_unique_id(void* id, size_t id_bytes, char* message, size_t message_bytes);

// Loads, plans, checks the plan, then allocates. On failure *engine is null and `message` [message_bytes] holds the
// text, cut to fit and always terminated; null with 0 bytes: no text wanted.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_create(const dsv4rt_engine_options* options, dsv4rt_engine** engine,
                                                 char* message, size_t message_bytes);
// Since version 7. The same from a checkpoint in memory: the text of its config.json, and tensors [count]; without
// options->checkpoint. All of it is read during the call only, and packed straight from where it is, a layer at a time.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_create_from_tensors(const dsv4rt_engine_options* options,
                                                              const char* config_json, const dsv4rt_tensor* tensors,
                                                              size_t count, dsv4rt_engine** engine, char* message,
                                                              size_t message_bytes);
// Since version 9. Another engine with the weights of `owner`, which are in memory once; it may be destroyed before or
// after that. options->checkpoint: null, empty or that of `owner`. DSV4RT_INVALID_ARGUMENT naming an option by which
// the weights would be others. The text of a failure goes to `message` only.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_create_sharing(dsv4rt_engine* owner, const dsv4rt_engine_options* options,
                                                         dsv4rt_engine** engine, char* message, size_t message_bytes);
// Frees the engine, its sequences and an outstanding step. Null is accepted. DSV4RT_INTERNAL: everything is freed, but
// a debug build found that something had written outside of its part of the cache.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_destroy(dsv4rt_engine* engine);

// The text of the last call on this engine that failed: what, why, what is accepted. Empty if none did or `engine` is
// null. Valid until the next call that fails.
DSV4RT_EXPORT const char* dsv4rt_engine_last_error(const dsv4rt_engine* engine);

// d: values in a row of x and of the output.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_hidden_size(dsv4rt_engine* engine, int64_t* hidden_size);
// The loaded layers in order, numbered as in the model. *count is set even if layers [capacity] is too short
// (DSV4RT_INVALID_ARGUMENT); null with capacity 0 asks for the count.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_layers(dsv4rt_engine* engine, int32_t* layers, size_t capacity,
                                                 size_t* count);
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_memory(dsv4rt_engine* engine, dsv4rt_memory* memory);
// index < region_count.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_memory_region(dsv4rt_engine* engine, size_t index,
                                                        dsv4rt_memory_region* region);

// Since version 7. Dimensions and formats; what kind of layer the loaded layer `index` is, of dsv4rt_engine_layers.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_config(dsv4rt_engine* engine, dsv4rt_config* config);
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_layer_info(dsv4rt_engine* engine, size_t index, dsv4rt_layer_info* info);
// Since version 7. Engine::describe, terminated. *bytes is its length without the terminator, and set even if text
// [capacity] is too short (DSV4RT_INVALID_ARGUMENT); null with capacity 0 asks for the length.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_describe(dsv4rt_engine* engine, char* text, size_t capacity, size_t* bytes);
// Since version 8. Engine::metrics; text, capacity and *bytes as above. Numbers grow: 16 KiB serve better than asking.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_metrics(dsv4rt_engine* engine, const dsv4rt_metric_label* labels,
                                                  size_t label_count, char* text, size_t capacity, size_t* bytes);
// Since version 7. Counts, also while a step is outstanding. role: DSV4RT_ROLE_...
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_get_state(dsv4rt_engine* engine, dsv4rt_engine_state* state);
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_role_state(dsv4rt_engine* engine, int32_t role, dsv4rt_role_state* state);
// Since version 7. Where a layer keeps a role. DSV4RT_NOT_FOUND when the layer has no such role.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_cache_view(dsv4rt_engine* engine, int32_t layer, int32_t role,
                                                     dsv4rt_cache_view* view);

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
// Since version 13. Makes a sequence that other ranks do not have this rank's alone: Engine::claim.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_claim(dsv4rt_engine* engine, dsv4rt_sequence sequence);
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
// Since version 7. Length, reservation, blocks and how far it can be cut, also while a step is outstanding.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_get_state(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                      dsv4rt_sequence_state* state);

// ---- Snapshots ----------------------------------------------------------------------------------
// A sequence's cache as bytes that describe themselves, between steps. Engine::save_sequence and restore_sequence in
// engine.h say what binds a snapshot to its checkpoint and what is refused. options: null for the defaults.

// What dsv4rt_sequence_save would write.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_snapshot_bytes(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                           const dsv4rt_snapshot_options* options, int64_t* bytes);
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_save(dsv4rt_engine* engine, dsv4rt_sequence sequence,
                                                 const dsv4rt_snapshot_options* options, dsv4rt_snapshot_sink sink,
                                                 void* user_data);
// A new sequence out of a snapshot [bytes] and the increments on it, one after the other, all or nothing.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_restore(dsv4rt_engine* engine, const void* snapshot, size_t bytes,
                                                    int64_t reserve_tokens, const dsv4rt_snapshot_options* options,
                                                    dsv4rt_sequence* sequence);
// Since version 9. The same from a source, which is read once and checked while the sequence is filled; prefixes that
// were cached may have made room for a sequence that is then refused.
DSV4RT_EXPORT dsv4rt_status dsv4rt_sequence_restore_from(dsv4rt_engine* engine, dsv4rt_snapshot_source source,
                                                         void* user_data, int64_t reserve_tokens,
                                                         const dsv4rt_snapshot_options* options,
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
// Since version 7. Whether dsv4rt_step_prepare would have the blocks: DSV4RT_OK with shortage->missing_blocks 0, or
// above 0 and what is short; other failures are those of dsv4rt_step_prepare. Changes nothing, and may be asked while a
// step is outstanding: as if all of its tokens were accepted.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_can_prepare(dsv4rt_engine* engine, const dsv4rt_step_entry* entries,
                                                    size_t count, const dsv4rt_step_options* options,
                                                    dsv4rt_block_shortage* shortage);
// Since version 11. The rows of a step that this rank computes, and reads of x: Engine::context_rows. Part p are the
// rows [first[p], first[p] + count[p]); both arrays are [2].
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_context_rows(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t* first,
                                                     int32_t* count);
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
// Since version 7. The same with a hook that is told step and stream.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_run_with_outputs(dsv4rt_engine* engine, const dsv4rt_step* step,
                                                         const dsv4rt_bf16* x, dsv4rt_layer_output_hook hook,
                                                         void* user_data);
// Ends the step after every layer ran. accepted[i]: tokens of entry i that stay; null with count 0: all.
// As many as the draft budget can always be rejected; more are DSV4RT_INVALID_ARGUMENT when the rings no longer hold
// what the tokens before them left, and the step stays outstanding.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_commit(dsv4rt_engine* engine, const dsv4rt_step* step, const int32_t* accepted,
                                               size_t count);
// Since version 10. The same with counts [count, one of every entry] in backend memory, written by work on the engine's
// stream: nothing waits, and the next step may be prepared and run before the host knows them. Each entry may reject up
// to draft_budget_tokens + 1 of its tokens. Engine::commit_from_device in engine.h says which calls wait for the counts
// later, and which of them answers DSV4RT_INVALID_ARGUMENT when one cannot be.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_commit_from_device(dsv4rt_engine* engine, const dsv4rt_step* step,
                                                           const int32_t* accepted, size_t count);
// Since version 10. The counts of one of the last eight steps that ended so, as they were read; waits for nothing.
// *known: 0 while they are on their way, with *count 0, and 1 afterwards. *count is set even if accepted [capacity] is
// too short (DSV4RT_INVALID_ARGUMENT); null with capacity 0 asks for the count.
DSV4RT_EXPORT dsv4rt_status dsv4rt_step_accepted(dsv4rt_engine* engine, const dsv4rt_step* step, int32_t* known,
                                                 int32_t* accepted, size_t capacity, size_t* count);
// Since version 10. Waits for counts that are under way and applies them, between steps: lengths are exact afterwards.
DSV4RT_EXPORT dsv4rt_status dsv4rt_engine_settle(dsv4rt_engine* engine);
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
