// Engine: attention layers of a checkpoint together with the cache they own.
//
// A serving stack creates sequences, prepares a step, calls forward_layer for every layer (its
// experts run in between) or step() for all of them, and commits or cancels.
//
// Failures: no call throws, whatever a hook, a sink or the host's memory does. Unless it says otherwise, a call that
// fails has changed nothing, be it misuse (kInvalidArgument, kFailedPrecondition, kStaleHandle) or a shortage
// (kResourceExhausted: blocks, slots, or memory of the host). Only a device fault (kFaulted), a defect of the
// library (kInternal) and the loss of other ranks (kBackendLost, ParallelOptions) latch the engine: it can then only be
// destroyed, and every call but config, layers, layer_specs, formats, memory, input, stream, graph_stats,
// non_finite_entries, prefix_unit_tokens and prefix_stats answers kFaulted, or kBackendLost, with the first cause as
// its text.
//
// Threads: one thread at a time. Streams: work is enqueued in order on one stream and no call but
// synchronize() and forward_layer_from_host() waits for it, except that the host runs at most eight steps
// ahead and that accepted counts on the device are waited for by the calls that need them (commit_from_device).
// What the caller writes for a call, x above all, is written on that stream, or is there before the call: the
// engine's own stream does not wait for the default stream, nor for what cudaMemcpy leaves under way there.
//
// Rows: x and outputs are dense, [tokens, hidden_size] BF16 without gaps between rows, in backend memory: host
// memory with the CPU backend (multiples of 2 bytes), device memory at multiples of 16 bytes with "cuda".
//
//   auto engine = Engine::create(options);
//   auto seq = (*engine)->create_sequence();
//   StepEntry entry{*seq, tokens};
//   auto step = (*engine)->prepare({&entry, 1});
//   for (LayerId layer : (*engine)->layers()) (*engine)->forward_layer(*step, layer, x, out);
//   (*engine)->commit(*step);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4rt/communicator.h"
#include "dsv4rt/engine_state.h"
#include "dsv4rt/export.h"
#include "dsv4rt/linear_precision.h"
#include "dsv4rt/memory_checkpoint.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/model.h"
#include "dsv4rt/prefix_cache.h"
#include "dsv4rt/status.h"
#include "dsv4rt/step.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

// Captured steps (CUDA graphs). No effect with a backend that cannot capture.
struct GraphOptions {
  // Graphs kept at once; the least recently used one leaves. 0: every step runs eagerly.
  std::int32_t max_graphs = 64;
  // Steps of more tokens run eagerly: a long prefill gains nothing from a graph.
  std::int32_t max_tokens = 512;
  // Memory that the graphs kept may take together, as estimated from their nodes (20 KiB each); the least recently
  // used ones leave before it is passed. Part of the memory plan. The newest graph is kept even if it is larger.
  std::int64_t max_bytes = std::int64_t{1} << 30;
};

// Several engines, one in each process (rank), that run every step together. docs/distributed.md.
struct ParallelOptions {
  // Tensor parallelism over the communicator's ranks: each holds an equal part of the query heads and output groups and
  // a whole cache, whose bytes are the same on every rank; layers end with a sum over the ranks. Every rank makes the
  // same calls with the same x and gets the same outputs. The number of ranks divides num_attention_heads and o_groups,
  // and a rank's columns of wo_b are whole blocks of scales (kInvalidArgument and kUnsupported with the numbers). Null:
  // one rank. The engine is the communicator's only user: while it lives another engine is refused it
  // (kFailedPrecondition); "mpi" goes with backend "cpu", "nccl" with "cuda".
  std::shared_ptr<Communicator> tensor;

  // Context parallelism over the communicator's ranks, for long prompts: the rows of a step of context_min_tokens and
  // more are dealt out, each rank projects, compresses and attends for its own, and all exchange finished rows of the
  // cache, what lies around the cuts, and the outputs. Every rank holds all weights and a whole cache, makes the same
  // calls with the same x (and with a prefix cache the same token ids, salts and policies), and gets the same outputs;
  // outputs and cache bytes are those of one rank. Shorter steps are computed by every rank. Long steps run eagerly.
  // StepOptions::hand_over_to leaves sequences with one rank.
  // Null: none. Not together with `tensor` (kUnsupported).
  std::shared_ptr<Communicator> context;
  std::int32_t context_min_tokens = 256;
  // False: outputs of shared steps stay where they were computed. A rank then reads no other rows of x and writes no
  // other rows of `out` than Engine::context_rows names, which is what a model needs that deals out its other layers in
  // the same way; 2 * hidden_size bytes a row and layer are not sent. Not with check_outputs (kUnsupported).
  bool context_share_outputs = true;

  // How long create() waits for the other ranks, which may take longer to read their weights.
  double create_deadline_seconds = 300;
};

struct EngineOptions {
  // Directory with config.json and model.safetensors or model.safetensors.index.json. Read once at
  // create(); not needed afterwards. Empty when the checkpoint is in memory.
  std::filesystem::path checkpoint;

  // "deepseek-v4" (the released checkpoints) or "seed"; see docs/model.md.
  std::string profile = "deepseek-v4";

  // "cpu" or "cuda". "cuda" is refused (kUnsupported) by builds without it and on machines without a
  // usable GPU.
  std::string backend = "cpu";

  // Backend cuda: the device's ordinal, and the cudaStream_t on which everything is enqueued. The stream
  // belongs to the caller and outlives the engine; null: the engine makes one. Engines of one process may
  // be on different devices. Calls leave the calling thread's current device as they found it, and hooks
  // run with it.
  std::int32_t device = 0;
  void* stream = nullptr;

  // How quantized weights (query, key and output projections) are multiplied, with backend "cuda"; everything else is
  // exact in any case, and so is what the device has no such products for (describe() tells what is in force).
  // kFp8, compute capability 9.0: FP8 weights by the matrix instruction for E4M3, which keeps about 14 bits of a sum
  // of 128 inputs, and in FP32 across those, as DeepSeek's serving kernels do. That moves each product by 0.03 % of its
  // norm, and 1 to 2 % of cached codes by one. Outputs of attention are rounded to E4M3 before wo_a multiplies them, as
  // inputs of all other FP8 weights are in any case: they move by 2.7 % of their norm, a layer's outputs by about 4 %.
  // For faster steps of many tokens; workspace holds outputs of attention and of wo_a once more, as codes
  // (EngineMemory::workspace_bytes). Results stay the same whatever a step's other sequences, padding, chunks and
  // capture are.
  // kNvfp4, compute capability 10.x: NVFP4 weights for which the checkpoint has an input_scale, in products of 2^32
  // multiply-adds and more, by cuBLASLt. Inputs are rounded to NVFP4, which moves these products by about 10 % and
  // loses NaN; sums depend on the number of rows, so results depend on a step's other sequences, padding and chunks
  // (captured and eager runs of the same rows still agree). It costs a second copy of those weights
  // (EngineMemory::weight_bytes) and needs the CUDA toolkit's libcublasLt, which is loaded at create() (kUnsupported
  // where it is not found).
  LinearPrecision linear_precision = LinearPrecision::kExact;

  GraphOptions graphs;

  // Name layers and stages to profilers (NVTX ranges around what eager steps enqueue). Backend cuda.
  bool profiler_ranges = false;

  // Called with a message for people when the engine works, but not as well as it should: when captured graphs push
  // each other out, and once for every reason for which backend cuda runs an operation on slow kernels (a build without
  // code for the device, a format, window or number of rows that the fast kernel does not take), from the thread that
  // runs the step or creates the engine; when outputs are not finite (check_outputs); and by the destructor when it
  // finds cache overwritten (poison_freed_blocks). It must not change the engine; what it throws is dropped.
  std::function<void(std::string_view)> on_warning;

  ParallelOptions parallel;

  // CPU threads; 0: as many as the machine offers. Results do not depend on it.
  std::int32_t threads = 0;

  // Layers to load: [first_layer, first_layer + layer_count); count 0: to the last one. Fewer
  // layers take less memory; layers are independent of each other.
  std::int32_t first_layer = 0;
  std::int32_t layer_count = 0;

  // Weights, norms, sinks, position biases and scales that are NaN or infinite are refused (kBadInput naming the tensor
  // and the first such index). True loads them: what they reach becomes NaN.
  bool allow_non_finite_weights = false;

  // Looks at the outputs of every layer for Engine::output_check, and tells on_warning of those that are not finite.
  // False: costs nothing.
  bool check_outputs = false;

  // How the prefix cache behaves; CacheLimits::boundary_states > 0 makes one. With products in NVFP4, hits are
  // still content of the same tokens, but not to the last byte what a run of other steps would have left.
  PrefixCacheOptions prefix_cache;

  // Limits of the cache; see CacheLimits. They fix every allocation.
  CacheLimits limits;

  // Cache formats; unset: the profile's.
  std::optional<RowFormat> row_format;
  std::optional<IndexKeyFormat> index_format;

  // Rows per block of compressed rows. Larger blocks copy faster, smaller ones waste less.
  std::int32_t csa_rows_per_block = 64;
  std::int32_t hca_rows_per_block = 64;

  // Draft tokens that a step may carry beyond what is accepted; rings are padded by it.
  std::int32_t draft_budget_tokens = 0;

  // Refuse (kResourceExhausted, before allocating) when the memory plan exceeds this; 0: no limit.
  std::int64_t memory_limit_bytes = 0;

  // Helps debugging: cache that becomes free is overwritten with bytes that are NaN in every format, so
  // that a stale read shows; bytes around pools, tables and rings and between blocks are checked when
  // something becomes free and when the engine is destroyed. A broken one is kInternal and latches the
  // engine. The destructor tells on_warning; if that is unset it ends the program on purpose, by std::terminate with
  // the text as the exception in flight, since overwritten memory must not go unnoticed. Results do not change. 512
  // bytes per region, not in the plan. Unset: on in builds without NDEBUG.
  std::optional<bool> poison_freed_blocks;
};

// Bytes the engine holds, planned before they are taken.
struct EngineMemory {
  MemoryPlan cache;
  std::int64_t weight_bytes = 0;     // size of the weights that the backend has packed; 0 with those of another engine
  std::int64_t workspace_bytes = 0;  // what a step's operations hand to each other
  std::int64_t scratch_bytes = 0;    // what the largest single operation needs for itself
  std::int64_t exchange_bytes = 0;   // what exchanges between ranks take (Communicator::scratch_bytes); 0 with one
  std::int64_t graph_bytes = 0;      // most that captured graphs take, by GraphOptions::max_bytes; 0 without capture
  std::int64_t total_bytes = 0;
};

// A prepared step. Copies name the same step; altered ones are refused (kInvalidArgument for a number of rows,
// kFailedPrecondition for a serial that is not the outstanding one).
struct Step {
  std::uint64_t serial = 0;
  std::int32_t tokens = 0;        // rows of x and of the output, padding included
  std::int32_t valid_tokens = 0;  // rows that belong to sequences; they come first
};

// BF16 as its 16 bits.
using Bf16Bits = std::uint16_t;

// Consecutive rows of a step.
struct StepRows {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

// What became of the steps given to Engine::step.
struct GraphStats {
  std::int64_t captures = 0;     // graphs made
  std::int64_t replays = 0;      // steps run by a graph, the first run after a capture included
  std::int64_t eager_steps = 0;  // steps run layer by layer
  std::int64_t evictions = 0;    // graphs that left for another
  std::int64_t last_nodes = 0;   // nodes of the graph that ran last
};

// What EngineOptions::check_outputs found in a step.
struct OutputCheck {
  // Whether the step's work has run: results of a device come when they are there, nothing waits for them.
  bool known = false;
  // Which entries of the step, ascending, had an output of some layer that is NaN or infinite. Their sequences hold
  // such values and do not recover; other sequences are not concerned.
  std::vector<std::int32_t> entries;
};

// What Engine::commit_from_device was given.
struct AcceptedCounts {
  // Whether they have reached the host; nothing waits for them.
  bool known = false;
  std::vector<std::int32_t> accepted;  // index: entry; counts as they were read, none until they are known
};

// Called by Engine::step after each layer. `output` [tokens, d] is the layer's attention output;
// the hook fills `next_input` [tokens, d] with the next layer's input (null after the last layer).
// A failed Status ends step() with that Status, an exception with kInvalidArgument (kResourceExhausted for
// std::bad_alloc). While it runs, calls that change the engine are kFailedPrecondition.
struct LayerOutput {
  LayerId layer;
  const Bf16Bits* output = nullptr;
  Bf16Bits* next_input = nullptr;
  void* stream = nullptr;  // cudaStream_t that the hook enqueues on; null with the CPU backend
};
using LayerHook = std::function<Status(const LayerOutput&)>;

// Takes the next bytes of a snapshot, in order; they are valid during the call. A failed Status ends
// the save and is what it returns; exceptions and calls from inside are as for LayerHook.
using SnapshotSink = std::function<Status(std::span<const std::byte> bytes)>;

// Fills `buffer` with the next bytes of a snapshot from its beginning on and gives how many; 0: there are no more. A
// failed Status ends the restore; exceptions and calls from inside are as for LayerHook.
using SnapshotSource = std::function<Result<std::size_t>(std::span<std::byte> buffer)>;

struct SnapshotOptions {
  // Authenticates a snapshot: its last 32 bytes are then the HMAC-SHA-256 of all others under this key. 16 bytes and
  // more, the same for saving and restoring; empty: checksums find damage, but nothing finds forgery.
  std::span<const std::byte> key = {};

  // Saving: 0 for the whole sequence. Otherwise an increment: the compressed rows since the sequence was last saved,
  // and its rings. The length that it had then (SequenceState::saved_tokens).
  std::int64_t base_tokens = 0;
};

class Engine {
 public:
  // Loads, plans, checks the plan, then allocates. Errors name file, tensor, key or role; memory taken is given back.
  DSV4RT_EXPORT static Result<std::unique_ptr<Engine>> create(const EngineOptions& options);
  // The same with config and tensors from memory: options.checkpoint stays empty. Tensors are packed straight from
  // where they are, a layer at a time; nothing refers to them afterwards. The engine is the one of a directory with the
  // same content: each reads the other's snapshots.
  DSV4RT_EXPORT static Result<std::unique_ptr<Engine>> create(const EngineOptions& options,
                                                              const MemoryCheckpoint& checkpoint);
  // Another engine with the weights of this one, which are in memory once and stay as long as one of their engines
  // does: a cache, a stream, graphs and limits of its own. options.checkpoint is empty or this engine's; profile,
  // backend, device, linear_precision, layers and allow_non_finite_weights are this engine's too
  // (kInvalidArgument naming the field). kUnsupported with several ranks. Both may then be used by different threads;
  // the call itself counts as one of this engine, and is answered also when that is latched.
  [[nodiscard]] DSV4RT_EXPORT Result<std::unique_ptr<Engine>> create_sharing(const EngineOptions& options) const;
  DSV4RT_EXPORT ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The loaded layers' configuration.
  [[nodiscard]] DSV4RT_EXPORT const ModelConfig& config() const noexcept;
  [[nodiscard]] DSV4RT_EXPORT std::span<const LayerId> layers() const noexcept;
  [[nodiscard]] DSV4RT_EXPORT const EngineMemory& memory() const noexcept;

  // The loaded layers' kinds, by layers(), numbered as in the model; formats and block sizes of the cache.
  [[nodiscard]] DSV4RT_EXPORT std::span<const LayerSpec> layer_specs() const noexcept;
  [[nodiscard]] DSV4RT_EXPORT const CacheFormats& formats() const noexcept;
  // Profile, backend, config, layers, formats, limits and memory as one JSON object.
  [[nodiscard]] DSV4RT_EXPORT Result<std::string> describe() const;

  // Counts and totals as Prometheus text (exposition format 0.0.4), also while a step is outstanding: docs/metrics.md.
  // Every sample carries `labels`, which tell an engine from others. kInvalidArgument naming a label that is no name,
  // given twice or used by the metrics, or whose value is not UTF-8.
  [[nodiscard]] DSV4RT_EXPORT Result<std::string> metrics(std::span<const MetricLabel> labels = {}) const;

  // State as data, also while a step is outstanding: engine_state.h.
  [[nodiscard]] DSV4RT_EXPORT Result<EngineState> state() const;
  [[nodiscard]] DSV4RT_EXPORT Result<SequenceState> sequence_state(SequenceId sequence) const;
  // What prepare would lack blocks of; nothing if it has them. During a step: as if all of its tokens were accepted.
  // Errors: those of prepare but for blocks.
  [[nodiscard]] DSV4RT_EXPORT Result<std::optional<BlockShortage>> can_step(std::span<const StepEntry> entries,
                                                                            const StepOptions& options = {}) const;
  // kNotFound when the layer has no such role.
  [[nodiscard]] DSV4RT_EXPORT Result<CacheView> cache_view(LayerId layer, CacheRole role) const;

  // Sequences; between steps (kFailedPrecondition during one). Ids of another engine are kStaleHandle, as old ones are.
  // reserve_tokens > 0 sets blocks aside so that appends up to there cannot fail for want of blocks; kResourceExhausted
  // names role, layer and what is missing.
  DSV4RT_EXPORT Result<SequenceId> create_sequence(std::int64_t reserve_tokens = 0);
  DSV4RT_EXPORT Result<SequenceId> fork(SequenceId parent, std::int64_t reserve_tokens = 0);
  // A sequence with ids: it begins with what is cached of them, at most all but the last token, which has to be run.
  // The tokens from SequenceStart::hit_tokens on are given to steps with their ids (StepEntry::token_ids) and become
  // cached in turn. kFailedPrecondition without a prefix cache; kInvalidArgument naming a negative id.
  DSV4RT_EXPORT Result<SequenceStart> create_sequence(std::span<const std::int32_t> token_ids,
                                                      const SequenceOptions& options);
  // A sequence that begins with the first `length` tokens of another, where a boundary state is kept
  // (kFailedPrecondition naming the nearest one below otherwise).
  DSV4RT_EXPORT Result<SequenceId> branch(SequenceId parent, std::int64_t length, std::int64_t reserve_tokens = 0);
  // Drops tokens from the end: to 0, as far back as the rings hold what the rest needs, or to a length at which a
  // boundary state of the sequence is kept (kFailedPrecondition naming the earliest or nearest length otherwise).
  // kResourceExhausted when a reservation could not be kept.
  DSV4RT_EXPORT Status truncate(SequenceId sequence, std::int64_t new_length);
  DSV4RT_EXPORT Status release(SequenceId sequence);
  // With context parallelism: a sequence that other ranks do not have becomes this rank's alone, as after
  // StepOptions::hand_over_to. For those that this rank has made by itself: created for a prompt of its own, or
  // restored from what one of its own was saved as. The other ranks are not told; kFailedPrecondition for one that is
  // another rank's; kUnsupported with a prefix cache and kInvalidArgument with tensor parallelism, as there. Changes
  // nothing without other ranks.
  DSV4RT_EXPORT Status claim(SequenceId sequence);
  [[nodiscard]] DSV4RT_EXPORT Result<std::int64_t> length(SequenceId sequence) const;
  // What create_sequence(tokens) would answer; changes nothing but that accepted counts which are under way are waited
  // for and applied (commit_from_device), outside of hooks and callbacks.
  [[nodiscard]] DSV4RT_EXPORT Status can_admit(std::int64_t tokens) const;

  // Prefix cache, between steps; kFailedPrecondition without one (CacheLimits::boundary_states). docs/cache.md.
  // The shortest prefix that can be cached; 0 without a prefix cache. Everything cached is a multiple of it.
  [[nodiscard]] DSV4RT_EXPORT std::int64_t prefix_unit_tokens() const noexcept;
  // What create_sequence would begin with; changes nothing, also not what leaves first.
  [[nodiscard]] DSV4RT_EXPORT Result<PrefixLookup> prefix_lookup(std::span<const std::int32_t> token_ids,
                                                                 std::span<const std::byte> salt = {}) const;
  // Keeps the longest prefix of these tokens that a sequence can begin with until it is unpinned as often; gives its
  // tokens, 0 if there is none. kResourceExhausted when reservations count on its blocks.
  DSV4RT_EXPORT Result<std::int64_t> pin_prefix(std::span<const std::int32_t> token_ids,
                                                std::span<const std::byte> salt = {});
  DSV4RT_EXPORT Result<std::int64_t> unpin_prefix(std::span<const std::int32_t> token_ids,
                                                  std::span<const std::byte> salt = {});
  // Forgets units from the end of what is cached of these tokens, up to one that is pinned or that other prefixes
  // share; gives the tokens forgotten. Sequences keep what they hold.
  DSV4RT_EXPORT Result<std::int64_t> evict_prefix(std::span<const std::int32_t> token_ids,
                                                  std::span<const std::byte> salt = {});
  // Forgets everything that is not pinned.
  DSV4RT_EXPORT Status clear_prefixes();
  [[nodiscard]] DSV4RT_EXPORT PrefixStats prefix_stats() const;

  // Snapshots: a sequence's cache as bytes that describe themselves (docs/cache.md "Snapshots"), to
  // be continued later, in another engine or elsewhere. Between steps only. Outputs and cache of a
  // restored sequence are those of one that was never saved, byte for byte, if both engines have the same
  // linear_precision and it is not kNvfp4. Digests of config and weights bind it to the checkpoint.
  // Host memory: one block, or the whole snapshot without a sink. kFailedPrecondition while a step is outstanding, and
  // for an increment on anything but what was last saved (or restored) of the sequence: a save that failed in between
  // does not count; a sequence cut below what was saved, or one that branch made, is saved whole first.
  DSV4RT_EXPORT Status save_sequence(SequenceId sequence, const SnapshotSink& sink,
                                     const SnapshotOptions& options = {});
  DSV4RT_EXPORT Result<std::vector<std::byte>> save_sequence(SequenceId sequence, const SnapshotOptions& options = {});
  // What save_sequence would write. Waits for accepted counts and applies them, as can_admit does.
  [[nodiscard]] DSV4RT_EXPORT Result<std::int64_t> snapshot_bytes(SequenceId sequence,
                                                                  const SnapshotOptions& options = {}) const;
  // A new sequence out of a snapshot and the increments on it, one after the other without gaps, oldest first. All or
  // nothing: everything is checked before the cache changes.
  // kBadInput: damaged, truncated or too long, or not authenticated by the key given; kInvalidArgument: authenticated
  // and no key given; kUnsupported: another version, profile, config, set of layers, weights or row format, or longer
  // than max_context_tokens; kResourceExhausted as for
  // create_sequence. Messages name section and value. Block sizes, limits and draft budget may differ
  // from those of the engine that saved. Tokens before the snapshot's end can be dropped only as far
  // as after a rejected step, or all of them.
  DSV4RT_EXPORT Result<SequenceId> restore_sequence(std::span<const std::byte> snapshot,
                                                    std::int64_t reserve_tokens = 0,
                                                    const SnapshotOptions& options = {});
  // The same from a source, which is read once: host memory for one block. What it gives is checked while the sequence,
  // whose id nobody has yet, is filled; prefixes that were cached may have made room for one that is then refused.
  DSV4RT_EXPORT Result<SequenceId> restore_sequence_from(const SnapshotSource& source, std::int64_t reserve_tokens = 0,
                                                         const SnapshotOptions& options = {});

  // Begins a step: appends tokens to sequences, all or nothing. When it fails, no step is outstanding that was not
  // before. One step may be outstanding; it ends by commit or cancel.
  DSV4RT_EXPORT Result<Step> prepare(std::span<const StepEntry> entries, const StepOptions& options = {});

  // Runs one layer of the outstanding step: x and out are two buffers of [step.tokens, hidden_size]. Every layer
  // runs exactly once per step, in any order. A layer that failed has not run: it may be run again if it failed before
  // it wrote to the rings of the cache, or gave other ranks rows of the step. Later than that the rings may have lost
  // rows that its tokens read, or the others go on without it, and everything but cancel is kFailedPrecondition.
  DSV4RT_EXPORT Status forward_layer(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out);

  // The same with x and out in host memory, at any multiple of 2 bytes, for tools and tests: copies both ways and
  // waits for the result. With the CPU backend it is forward_layer. If copying the result back fails, the layer has
  // run.
  DSV4RT_EXPORT Status forward_layer_from_host(const Step& step, LayerId layer, const Bf16Bits* x, Bf16Bits* out);

  // Runs all layers in order; x is the first layer's input. When it fails, an eager step has run some of its layers
  // and is to be cancelled. A captured step is as it was: it may be run again, also layer by layer, or be cancelled.
  //
  // A step prepared with StepOptions::capture runs as one graph: the first step of a shape calls the hook
  // while the work is recorded, later ones replay the record without calling it. The hook must then
  // only enqueue work on LayerOutput::stream whose pointers stay valid, and hooks that enqueue different
  // work need different `hook_key`s. x is part of the record too: give the same buffer every time, for
  // instance input(). Captured and eager runs give the same bytes.
  DSV4RT_EXPORT Status step(const Step& step, const Bf16Bits* x, const LayerHook& hook, std::uint64_t hook_key = 0);

  // The rows of a step that this rank computes with context parallelism, which alone it reads of x: two parts, of which
  // either may be empty. All rows, as the first part, where every rank computes all: with one rank, with tensor
  // parallelism, in steps of fewer rows than context_min_tokens and in those of sequences that this rank alone has. Of
  // the outstanding step: of others as if they were not handed over.
  [[nodiscard]] DSV4RT_EXPORT std::array<StepRows, 2> context_rows(const Step& step) const noexcept;

  // Backend memory for x, [max_step_tokens, hidden_size], at an address that stays: for captured steps.
  // Engine::step gives the hook the same memory as next_input.
  [[nodiscard]] DSV4RT_EXPORT Bf16Bits* input() noexcept;

  [[nodiscard]] DSV4RT_EXPORT GraphStats graph_stats() const noexcept;

  // The stream that work is enqueued on (cudaStream_t); null with the CPU backend.
  [[nodiscard]] DSV4RT_EXPORT void* stream() const noexcept;

  // Waits until everything enqueued has run, and reports what failed in it.
  DSV4RT_EXPORT Status synchronize();

  // Ends the step after every layer ran. accepted[i]: tokens of entry i that stay (all if empty). As many as the draft
  // budget can always be rejected; more are refused (kInvalidArgument) when the rings no longer hold what the tokens
  // before them left, and the step stays outstanding.
  DSV4RT_EXPORT Status commit(const Step& step, std::span<const std::int32_t> accepted = {});

  // Ends the step with counts that are in backend memory, written by work on the engine's stream: accepted.data() [of
  // every entry, one] is read in stream order, and may be written again by later work there. Nothing waits: the next
  // step may be prepared and run at once, and its tokens are appended to those that were accepted. Every entry may
  // reject up to draft budget + 1 of its tokens.
  // The host learns the counts later. They are waited for, and for nothing behind them, by settle() and by the calls
  // that need them: the commit of the next step or the cancel of one that has begun, every other call that changes
  // sequences or prefixes, can_admit and snapshot_bytes between steps, and a prepare that would be refused, for
  // whatever reason, if all tokens were accepted; with a prefix cache and with several ranks every prepare. Until then
  // the other questions (length, state, can_step) answer as if all were accepted.
  // A count that is negative, more than the entry's tokens, or rejects more is found when they are waited for. The
  // sequence then has all of its tokens, also in a step that ran since, and the call that waited has done nothing of
  // its own but is kInvalidArgument naming step, entry, sequence and value, once; cancel, can_admit and snapshot_bytes
  // leave that to the next call.
  // kFailedPrecondition with EngineOptions::draft_budget_tokens = 0, and for a step that hands its sequences over.
  // Otherwise errors are those of commit.
  DSV4RT_EXPORT Status commit_from_device(const Step& step, std::span<const std::int32_t> accepted);
  // The counts of one of the last eight steps that ended so (kFailedPrecondition for others). Applies nothing.
  [[nodiscard]] DSV4RT_EXPORT Result<AcceptedCounts> accepted_counts(const Step& step);
  // Waits for counts that are under way and applies them; between steps (kFailedPrecondition during one). Lengths and
  // states are exact afterwards.
  DSV4RT_EXPORT Status settle();

  // Ends the step at any point without keeping its tokens: as if it had never been prepared if no layer was run,
  // otherwise every sequence goes back to its length. Those whose rings were already overwritten beyond the draft
  // budget cannot: they are emptied, lose their reservation, and are returned in the order of the entries. It fails for
  // another step, for want of host memory for the list (the step is still outstanding then), and when the engine is
  // latched.
  DSV4RT_EXPORT Result<std::vector<SequenceId>> cancel(const Step& step);

  // Which entries of a step that was committed or cancelled had outputs that are not finite; of the last eight steps
  // (kFailedPrecondition for others, and without EngineOptions::check_outputs).
  [[nodiscard]] DSV4RT_EXPORT Result<OutputCheck> output_check(const Step& step);
  // Entries found so since the engine began, as far as they are known.
  [[nodiscard]] DSV4RT_EXPORT std::int64_t non_finite_entries() const noexcept;

 private:
  friend class EngineInspector;  // tools/lib/engine_inspector.h: reads caches for checks and digests
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4rt
