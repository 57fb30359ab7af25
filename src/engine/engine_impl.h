// What an Engine is made of. Private to src/engine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "attention/attention_layer.h"
#include "backend/backend.h"
#include "cache/kv_cache_manager.h"
#include "dsv4rt/engine.h"
#include "engine/cache_guard.h"
#include "engine/cache_memory.h"
#include "engine/graph_cache.h"
#include "engine/sequence_snapshot.h"
#include "engine/stage_ranges.h"

namespace dsv4rt {

struct Engine::Impl {
  EngineOptions options;
  AttentionSettings settings;      // config restricted to the loaded layers
  LayerSchedule schedule;          // layer 0 of it is options.first_layer of the model
  std::vector<LayerId> layer_ids;  // numbering of the model
  CacheLayout layout;
  EngineMemory memory;
  bool quantized_linears = false;  // some linear is not plain BF16

  std::unique_ptr<Backend> backend;  // outlives everything below
  CacheMemory cache;
  Buffer plain_frequencies;       // float [32]
  Buffer compressed_frequencies;  // float [32]
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
    StepView view;  // backend pointers
    std::vector<StepEntry> entries;
    std::vector<bool> layer_done;  // by local layer index
    bool started = false;          // metadata uploaded, block copies made
    bool capture = false;          // to run as a graph
  };
  Outstanding step;
  GraphCache graphs;
  GraphStats graph_stats;
  std::unique_ptr<StageRanges> stage_ranges;  // with EngineOptions::profiler_ranges
  StageObserver* stage_observer = nullptr;    // told of eagerly run layers
  bool capturing = false;
  Status fault;  // first device error; every later call returns it

  Status load(const EngineOptions& requested);
  Status plan_and_allocate();
  Status start_step();
  Status forward_layer(std::size_t local, const Bf16Bits* x, Bf16Bits* out);

  // Whole steps: step_runner.cpp.
  [[nodiscard]] bool captures(std::span<const StepEntry> entries) const;
  [[nodiscard]] std::int32_t captured_tokens(std::span<const StepEntry> entries, const StepOptions& asked) const;
  Status run_eagerly(const Bf16Bits* x, const LayerHook& hook);
  Status run_captured(const Bf16Bits* x, const LayerHook& hook, std::uint64_t hook_key);
  Status run_layers(const Bf16Bits* x, const LayerHook& hook);
  Result<std::unique_ptr<CapturedWork>> capture_layers(const Bf16Bits* x, const LayerHook& hook);
  Status make_room_for_a_graph();

  [[nodiscard]] Status check_outstanding(const Step& given) const;
  [[nodiscard]] Status no_step_outstanding(const char* operation) const;
  [[nodiscard]] SnapshotIdentity snapshot_identity() const;
  // Index into `layers`, or kInvalidArgument naming the layers there are.
  [[nodiscard]] Result<std::size_t> local_layer(LayerId layer) const;
  void clear_step();
  // After an operation of the manager that frees: checks and poisons what became free, with the rings
  // of `slot` if it lost its content. Latches what it finds.
  Status reclaim(std::optional<SlotId> slot = {});
};

}  // namespace dsv4rt
