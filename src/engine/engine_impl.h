// What an Engine is made of. Private to src/engine.
#pragma once

#include <exception>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "attention/attention_layer.h"
#include "backend/backend.h"
#include "base/try.h"
#include "cache/kv_cache_manager.h"
#include "checkpoint/attention_weights.h"
#include "checkpoint/tensor_source.h"
#include "dist/exclusive_use.h"
#include "dsv4rt/engine.h"
#include "engine/boundary_memory.h"
#include "engine/cache_guard.h"
#include "engine/cache_memory.h"
#include "engine/graph_cache.h"
#include "engine/late_counts.h"
#include "engine/output_watch.h"
#include "engine/sequence_snapshot.h"
#include "engine/shared_weights.h"
#include "engine/stage_ranges.h"
#include "model/tensor_shard.h"

namespace dsv4rt {

class SnapshotReader;

// Steps that ended since the engine began, and the tokens of the committed ones.
struct StepCounts {
  std::int64_t committed = 0;
  std::int64_t cancelled = 0;
  std::int64_t accepted_tokens = 0;
  std::int64_t rejected_tokens = 0;
};

struct Engine::Impl {
  EngineOptions options;
  ModelConfig config;             // the same as in `weights`, as the next four are
  TensorShard shard;              // this engine among the ranks
  Communicator* peers = nullptr;  // the other ranks, whatever they share; null: one rank
  ExclusiveUse use_of_peers;
  AttentionSettings settings;          // what the operations of this rank see
  LayerSchedule schedule;              // layer 0 of it is options.first_layer of the model
  std::vector<LayerId> layer_ids;      // numbering of the model
  std::vector<LayerSpec> layer_specs;  // the same layers, in that numbering
  CacheLayout layout;
  EngineMemory memory;

  std::unique_ptr<Backend> backend;  // outlives everything below
  CacheMemory cache;
  BoundaryMemory boundaries;
  std::shared_ptr<const SharedWeights> weights;
  PrefixDigest prefix_identity{};      // PrefixHasher::engine_digest
  std::vector<CacheRole> unit_roles;   // what of the cache a unit of a prefix is made of
  std::vector<CacheRole> state_roles;  // and a boundary state
  Buffer plain_frequencies;            // float [32]
  Buffer compressed_frequencies;       // float [32]
  Buffer workspace_memory;
  Workspace workspace;
  Buffer metadata;     // the step's packed buffer, backend side
  Buffer layer_input;  // bf16 [max_step_tokens, d], used by Engine::step
  Buffer layer_output;
  std::vector<AttentionLayer> layers;
  std::unique_ptr<KVCacheManager> manager;
  std::unique_ptr<CacheGuard> guard;  // null unless poison_freed_blocks

  // The outstanding step, if plan.serial != 0.
  struct Outstanding {
    StepPlan plan;
    StepView view;                           // backend pointers
    std::vector<bool> layer_done;            // index: local layer; whether it ran and succeeded; sized at load
    std::optional<std::size_t> spoiled_by;   // a layer that failed after it had begun to write the cache
    bool started = false;                    // metadata uploaded, table deltas and block copies made
    bool capture = false;                    // the step is to run as a graph
    DealtStep dealt;                         // its rows, if they are dealt out over ranks
    std::uint64_t hand_overs = 0;            // what its commit adds to Impl::hand_overs
    std::vector<LateCounts::Entry> entries;  // sequences and tokens that prepare was given
  };
  Outstanding step;
  LateCounts late_counts;            // off without EngineOptions::draft_budget_tokens
  OutputWatch outputs;               // off without EngineOptions::check_outputs
  std::int64_t output_warnings = 0;  // steps that there would have been a warning of
  GraphCache graphs;
  GraphStats graph_stats;
  StepCounts step_counts;
  std::unique_ptr<StageRanges> stage_ranges;  // null unless EngineOptions::profiler_ranges
  StageObserver* stage_observer = nullptr;    // told of eagerly run layers
  bool capturing = false;
  bool calling_out = false;  // a hook or sink of the caller runs
  Status latched;            // ok, or kFaulted with the first cause: what every later call answers

  Status load(const EngineOptions& requested);
  Status load(const EngineOptions& requested, const MemoryCheckpoint& checkpoint);
  Status load_sharing(const EngineOptions& requested, const Impl& owner);
  Status check_options();
  // Of the model's layers those that options name, as they are in the whole model.
  Result<std::vector<LayerSpec>> choose_layers(ModelConfig full);
  Status load_weights(const TensorSource& source, std::span<const LayerSpec> specs);
  // kInvalidArgument naming the option by which this engine would have other weights.
  [[nodiscard]] Status check_same_weights(const Impl& owner) const;
  // With `digest` of the weights: everything but them, in the order of what can be refused.
  Status prepare_memory(const SharedWeights& of);
  // The layers, of weights that are there.
  void make_layers();
  Status plan_and_allocate(const SharedWeights& of);
  // With the ranks of the options, if any; `memory_checkpoint`: null for the directory of the options.
  Status load_with_ranks(const MemoryCheckpoint* memory_checkpoint);
  // Everything that only this rank can fail at.
  Status load_rank(const MemoryCheckpoint* memory_checkpoint);
  Status load_directory();
  Status load_tensors(const MemoryCheckpoint& checkpoint);
  // Whether every rank came here with the same options and weights: kFailedPrecondition naming a rank that did not.
  Status agree(const Status& own);
  void identify_prefixes(const Sha256::Digest& digest);
  Status start_step();
  // Runs one layer of the step, or records it with the counts of `view` while capturing.
  Status run_layer(std::size_t local, const StepView& view, const Bf16Bits* x, Bf16Bits* out);
  Status forward_layer(const Step& given, LayerId layer, const Bf16Bits* x, Bf16Bits* out);

  // Whole steps: step_runner.cpp.
  [[nodiscard]] bool captures(std::span<const StepEntry> entries, const StepOptions& asked) const;
  [[nodiscard]] std::int32_t captured_tokens(std::span<const StepEntry> entries, const StepOptions& asked) const;
  Status run_eagerly(const Bf16Bits* x, const LayerHook& hook);
  Status run_captured(const Bf16Bits* x, const LayerHook& hook, std::uint64_t hook_key);
  Status run_layers(const StepView& view, const Bf16Bits* x, const LayerHook& hook);
  Result<std::unique_ptr<CapturedWork>> capture_layers(const StepHeader& counts, const Bf16Bits* x,
                                                       const LayerHook& hook);
  Status make_room_for(const CapturedWork& work);

  // What the public interface is made of: engine_calls.cpp.
  enum class Use : std::uint8_t {
    kRead,    // allowed inside a hook or sink too
    kSettle,  // the same; between steps and outside of hooks, counts that are under way are waited for and applied
    kStep,    // refused inside a hook or sink
    kChange,  // the same, and counts that are under way are waited for and applied
  };
  // Runs the body of a public call; nothing is thrown out of it. A latched engine answers kFaulted. A body that runs
  // out of memory must have changed nothing by then (kResourceExhausted); any other exception is a defect and latches.
  template <class Body>
  auto call(const char* name, Use use, Body&& body) noexcept -> std::invoke_result_t<Body> {
    try {
      note_lost_ranks();
      if (!latched.ok()) return latched;
      if (use == Use::kSettle && calling_out) use = Use::kRead;
      if (use != Use::kRead && calling_out) return changed_from_within(name);
      if (Status settled = settle_for(use); !settled.ok()) {
        tell_prefix_events();
        return settled;
      }
      auto result = body();
      if (use != Use::kRead) tell_prefix_events();
      return result;
    } catch (...) {
      return of_exception(name, std::current_exception());
    }
  }
  // Latches when the communicator has lost its ranks since the last call.
  void note_lost_ranks();
  // From now on every call answers kFaulted with this cause; kBackendLost if that is what it is. Returns what the
  // present call answers: the cause itself if it is kFaulted or kInternal, otherwise kFaulted.
  Status latch(Status cause) noexcept;
  // Device faults and broken invariants latch, a shortage or a refusal does not. Returns `status`.
  Status latch_if_broken(Status status) noexcept;
  Status of_exception(const char* name, const std::exception_ptr& thrown) noexcept;
  [[nodiscard]] static Status changed_from_within(const char* name);
  // Calls what the caller gave; what it throws is a failure of its own: kInvalidArgument or kResourceExhausted.
  Status call_hook(const LayerHook& hook, const LayerOutput& output);
  Status call_sink(const SnapshotSink& sink, std::span<const std::byte> bytes);
  Result<std::size_t> call_source(const SnapshotSource& source, std::span<std::byte> buffer);
  void warn(const std::string& text) noexcept;
  // Tells PrefixCacheOptions::on_event what the call has changed.
  void tell_prefix_events() noexcept;
  void tell(const PrefixEvent& event) noexcept;
  // kInvalidArgument unless `rows` can be given to the backend, or is host memory to copy from and to.
  enum class RowsIn : std::uint8_t { kBackend, kHost };
  [[nodiscard]] Status check_rows(const char* name, const char* argument, const void* rows, RowsIn memory) const;

  // Prefixes: engine_prefixes.cpp. The sequence holds its blocks; table row and rings follow, or it is released.
  Status fill_from_prefix(SequenceId sequence, const BoundaryCopyPlan& restore);
  // States that the last call of the manager took out of rings; without them the prefixes are only shorter.
  Status take_boundaries() noexcept;

  // Outputs that are not finite: engine_outputs.cpp. No-ops without EngineOptions::check_outputs.
  Status flag_outputs(const StepView& view, const bf16* output);
  Status end_output_step(std::uint64_t serial, std::int32_t entries);
  Status poll_outputs();

  // Accepted counts from the device: engine_counts.cpp. Whether a step may be prepared before the counts of the one
  // before it are known to the host.
  [[nodiscard]] bool runs_ahead() const noexcept;
  [[nodiscard]] Status check_counts(std::span<const std::int32_t> accepted) const;
  // What a call does with counts that are under way before its body.
  Status settle_for(Use use);
  // Waits for the counts that are under way and applies them. Fails only by latching.
  Status settle_counts();
  // The same; kInvalidArgument for a count that could not be, once.
  Status settle_and_tell();

  [[nodiscard]] Status check_outstanding(const Step& given) const;
  // The step is outstanding and all of its layers ran.
  [[nodiscard]] Status check_complete(const char* operation, const Step& given) const;
  [[nodiscard]] Status check_not_spoiled(const char* operation) const;
  [[nodiscard]] Status no_step_outstanding(const char* operation) const;
  // Sequences that one rank alone has: engine_ranks.cpp.
  struct HeldSequence {
    SequenceId sequence;
    std::int32_t rank = -1;
    std::uint64_t step = 0;  // serial of the step that handed it over
  };
  std::vector<HeldSequence> held;  // index: slot
  std::uint64_t dealt_steps = 0;   // committed ones whose rows were dealt out over ranks
  // A sum over the sequences that were handed over, in any order: ranks that differ in which went to which rank are
  // told at the next step that is dealt out.
  std::uint64_t hand_overs = 0;
  // Null: every rank has the sequence, or there is no such sequence.
  [[nodiscard]] const HeldSequence* held_sequence(SequenceId sequence) const noexcept;
  // kFailedPrecondition naming the rank that has it, unless that is this one or every rank.
  [[nodiscard]] Status check_held_here(const char* operation, SequenceId sequence) const;
  // Of what prepare is given. The sequences of a step that can be prepared are every rank's or this rank's.
  [[nodiscard]] Status check_hand_over(const char* operation, std::span<const StepEntry> entries,
                                       const StepOptions& asked) const;
  // Whether such a step is this rank's own: one of its sequences is.
  [[nodiscard]] bool alone(std::span<const StepEntry> entries) const noexcept;
  // How the step that was just prepared is dealt out.
  void deal_step(std::span<const StepEntry> entries, const StepOptions& asked);
  // The manager has committed the outstanding step: whose its sequences are now. False if they are whose they were.
  bool note_dealt_step();
  // Sequences that the step handed over to another rank become empty.
  Status give_back_held(std::uint64_t serial);

  // Snapshots: engine_snapshot.cpp. What a sequence was last saved as: what an increment adds to. Its rows stay what
  // they were as long as the sequence is not cut below it.
  struct SavedSequence {
    SequenceId sequence;
    std::int64_t length = 0;
    Sha256::Digest digest{};
  };
  std::vector<SavedSequence> last_saved;  // index: slot
  [[nodiscard]] SavedSequence* saved_sequence(SequenceId sequence) noexcept;
  void note_saved(SequenceId sequence, std::int64_t length, const Sha256::Digest& digest) noexcept;
  // The sequence has been cut.
  void forget_saved(SequenceId sequence, std::int64_t new_length) noexcept;
  // Nothing for base_tokens 0.
  Result<std::optional<SnapshotBase>> snapshot_base(const char* operation, SequenceId sequence,
                                                    std::int64_t base_tokens);
  Result<SequenceId> fill_from_snapshot(SnapshotReader& reader, std::int64_t reserve_tokens);
  [[nodiscard]] SnapshotIdentity snapshot_identity() const;
  // Index into `layers`, or kInvalidArgument naming the layers there are.
  [[nodiscard]] Result<std::size_t> local_layer(LayerId layer) const;
  // A layer of the schedule in the model's numbering.
  [[nodiscard]] LayerId model_layer(LayerId layer) const { return layer_ids.at(static_cast<std::size_t>(layer.value)); }
  // After work was enqueued: somebody sees to the deadline of other ranks; kBackendLost when they are lost.
  Status watch_ranks();
  void clear_step() noexcept;
  // After an operation of the manager that frees: checks and poisons what became free, with the rings of the
  // slots that lost their content. The operation is done by then, so any failure latches.
  Status reclaim(std::span<const StateSlotId> slots = {}) noexcept;
};

}  // namespace dsv4rt
