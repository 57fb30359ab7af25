// Loading: configuration, plan, weights, memory. The order matters: everything that can be refused
// is checked before the first large allocation.

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <string>
#include <tuple>
#include <vector>

#include "attention/planned_weights.h"
#include "attention/step_shapes.h"
#include "backend/cpu/cpu_backend.h"
#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_backend.h"
#endif
#include "base/message_text.h"
#include "base/try.h"
#include "cache/prefix_identity.h"
#include "checkpoint/attention_loader.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/finite_weights.h"
#include "checkpoint/memory_tensors.h"
#include "checkpoint/weights_digest.h"
#include "dist/check_collective.h"
#include "engine/engine_impl.h"
#include "engine/restrict_layers.h"
#include "engine/step_workspace.h"
#include "model/rope.h"

namespace dsv4rt {
namespace {

#if defined(NDEBUG)
constexpr bool kDebugBuild = false;
#else
constexpr bool kDebugBuild = true;
#endif

Result<std::unique_ptr<Backend>> create_backend(const EngineOptions& options) {
  if (options.threads < 0 || options.threads > kMaxCpuThreads) {
    return Status{StatusCode::kInvalidArgument, "threads: " + std::to_string(options.threads) +
                                                    "; accepted: 0 (all cores) to " + std::to_string(kMaxCpuThreads)};
  }
  if (options.backend == "cpu")
    return create_cpu_backend({.threads = options.threads, .max_isa = {}, .on_warning = options.on_warning});
  if (options.backend == "cuda") {
#if defined(DSV4RT_HAVE_CUDA)
    return create_cuda_backend({.device = options.device,
                                .stream = options.stream,
                                .linear_precision = options.linear_precision,
                                .on_warning = options.on_warning});
#else
    return Status{StatusCode::kUnsupported, "backend: 'cuda' is not part of this build; accepted: cpu"};
#endif
  }
  return Status{StatusCode::kInvalidArgument, "backend: '" + printable(options.backend) + "'; accepted: cpu, cuda"};
}

// Keeps weights for engines with such options: memory, without work of its own.
Result<std::unique_ptr<Backend>> create_weights_backend(const EngineOptions& options) {
  EngineOptions keeper;
  keeper.backend = options.backend;
  keeper.device = options.device;
  keeper.linear_precision = options.linear_precision;
  keeper.threads = 1;
  return create_backend(keeper);
}

Result<Buffer> upload_frequencies(Backend& backend, const ModelConfig& config, RopeChoice choice) {
  const RopeFrequencies frequencies = rope_frequencies(config, choice);
  DSV4RT_ASSIGN_OR_RETURN(Buffer buffer, backend.allocate(sizeof(frequencies), "rope frequencies"));
  DSV4RT_RETURN_IF_ERROR(backend.upload(buffer.data(), frequencies.data(), sizeof(frequencies)));
  return buffer;
}

// Handles of an engine are refused by every other one of the process.
HandleOrigin next_handles() noexcept {
  static std::atomic<std::uint32_t> engines{0};
  return HandleOrigin::of_engine(engines.fetch_add(1, std::memory_order_relaxed));
}

void add_role(std::vector<CacheRole>& roles, CacheRole role) {
  if (std::find(roles.begin(), roles.end(), role) == roles.end()) roles.push_back(role);
}

// One line a part, for the error that refuses the plan.
std::string memory_text(const EngineMemory& memory) {
  std::string text = "weights " + std::to_string(memory.weight_bytes) + " B, workspace " +
                     std::to_string(memory.workspace_bytes) + " B, scratch " + std::to_string(memory.scratch_bytes) +
                     " B, exchange " + std::to_string(memory.exchange_bytes) + " B, graphs " +
                     std::to_string(memory.graph_bytes) + " B";
  for (const PlannedRegion& region : memory.cache.regions) {
    text += ", " + std::string(cache_role_name(region.role)) + " " + std::to_string(region.total_bytes) + " B";
  }
  return text;
}

// Which boundaries are kept, and which leave: rows before them are exchanged.
std::string prefix_text(const PrefixCacheOptions& options) {
  const PrefixPolicy& policy = options.policy;
  return std::to_string(policy.interval_tokens) + (policy.prompt_end ? " prompt" : " -") +
         (policy.output_end ? " output" : " -") + (policy.fork_points ? " forks " : " - ") +
         std::to_string(static_cast<int>(options.eviction)) + " " + std::to_string(options.tenant_quota_tokens);
}

}  // namespace

Status Engine::Impl::load(const EngineOptions& requested) {
  options = requested;
  return load_with_ranks(nullptr);
}

Status Engine::Impl::load(const EngineOptions& requested, const MemoryCheckpoint& checkpoint) {
  options = requested;
  return load_with_ranks(&checkpoint);
}

Status Engine::Impl::load_with_ranks(const MemoryCheckpoint* memory_checkpoint) {
  const ParallelOptions& parallel = options.parallel;
  if (parallel.tensor != nullptr && parallel.context != nullptr) {
    return {StatusCode::kUnsupported, "parallel: tensor and context are both given; accepted: one of them"};
  }
  Communicator* const ranks = parallel.tensor != nullptr ? parallel.tensor.get() : parallel.context.get();
  if (ranks == nullptr) return load_rank(memory_checkpoint);
  DSV4RT_RETURN_IF_ERROR(check_deadline("parallel.create_deadline_seconds", parallel.create_deadline_seconds));
  if (parallel.context_min_tokens < 1) {
    return {
        StatusCode::kInvalidArgument,
        "parallel.context_min_tokens: " + std::to_string(parallel.context_min_tokens) + "; accepted: 1 or more tokens"};
  }
  if (parallel.context != nullptr && !parallel.context_share_outputs && options.check_outputs) {
    return {StatusCode::kUnsupported,
            "parallel.context_share_outputs: false, with check_outputs: a rank has its own rows only; accepted: one of "
            "them"};
  }
  DSV4RT_RETURN_IF_ERROR(ranks->state());
  if (ranks->size() == 1) return load_rank(memory_checkpoint);
  DSV4RT_ASSIGN_OR_RETURN(use_of_peers, use_exclusively(*ranks));
  peers = ranks;
  if (parallel.tensor != nullptr) shard = {.rank = ranks->rank(), .size = ranks->size()};
  Status own;
  try {
    own = load_rank(memory_checkpoint);
  } catch (const std::bad_alloc&) {  // the other ranks are told of it
    own = {StatusCode::kResourceExhausted, "no host memory"};
  }
  return agree(own);
}

// Ranks that differ would give wrong sums, or wait for each other.
Status Engine::Impl::agree(const Status& own) {
  struct Greeting {
    std::int32_t code = 0;
    Sha256::Digest digest{};
  };
  Greeting mine{.code = static_cast<std::int32_t>(own.code()), .digest = {}};
  if (own.ok()) {
    const SnapshotIdentity identity = snapshot_identity();
    const CacheLimits& limits = options.limits;
    Sha256 digest;
    digest.update(identity.config);
    digest.update(identity.weights);
    const std::string text =
        identity.profile + " " + options.backend + " " + std::string(linear_precision_name(options.linear_precision)) +
        " " + std::string(row_format_name(settings.row_format)) + " " +
        std::string(index_key_format_name(settings.index_format)) + " " + std::to_string(options.csa_rows_per_block) +
        " " + std::to_string(options.hca_rows_per_block) + " " + std::to_string(options.draft_budget_tokens) + " " +
        std::to_string(limits.max_sequences) + " " + std::to_string(limits.max_context_tokens) + " " +
        std::to_string(limits.max_step_tokens) + " " + std::to_string(limits.pool_tokens) + " " +
        std::to_string(limits.boundary_states) + " " + prefix_text(options.prefix_cache) + " " +
        std::to_string(options.graphs.max_graphs) + " " + std::to_string(options.graphs.max_tokens) +
        (settings.context != nullptr ? " context " : " tensor ") + std::to_string(options.parallel.context_min_tokens) +
        (options.parallel.context_share_outputs ? " shared outputs" : " own outputs");
    digest.update(std::as_bytes(std::span(text)));
    mine.digest = digest.finish();
  }
  std::vector<Greeting> all(static_cast<std::size_t>(peers->size()));
  Status status = peers->all_gather_host(&mine, all.data(), std::int64_t{sizeof(Greeting)},
                                         options.parallel.create_deadline_seconds);
  if (!own.ok()) return own;
  DSV4RT_RETURN_IF_ERROR(status);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].code == 0 && all[rank].digest == mine.digest) continue;
    const auto code = static_cast<StatusCode>(all[rank].code);
    return {StatusCode::kFailedPrecondition,
            "rank " + std::to_string(rank) + " of " + std::to_string(all.size()) +
                (code == StatusCode::kOk ? " was created for another checkpoint, or with other options"
                                         : " could not be created: " + std::string(status_code_name(code))) +
                " (seen by rank " + std::to_string(peers->rank()) + ")"};
  }
  return {};
}

Status Engine::Impl::load_rank(const MemoryCheckpoint* memory_checkpoint) {
  return memory_checkpoint == nullptr ? load_directory() : load_tensors(*memory_checkpoint);
}

Status Engine::Impl::load_directory() {
  if (options.checkpoint.empty()) {
    return {StatusCode::kInvalidArgument, "checkpoint: empty; a directory is required"};
  }
  DSV4RT_RETURN_IF_ERROR(check_options());
  DSV4RT_ASSIGN_OR_RETURN(ModelConfig full, ModelConfig::from_file(options.checkpoint / "config.json"));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<LayerSpec> specs, choose_layers(std::move(full)));
  DSV4RT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(options.checkpoint));
  return load_weights(checkpoint, specs);
}

Status Engine::Impl::load_tensors(const MemoryCheckpoint& checkpoint) {
  if (!options.checkpoint.empty()) {
    return {StatusCode::kInvalidArgument, "checkpoint: " + quote(options.checkpoint.native()) +
                                              "; accepted with tensors in memory: none, since they take its place"};
  }
  DSV4RT_RETURN_IF_ERROR(check_options());
  DSV4RT_ASSIGN_OR_RETURN(ModelConfig full, ModelConfig::from_json(checkpoint.config_json, "config_json"));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<LayerSpec> specs, choose_layers(std::move(full)));
  DSV4RT_ASSIGN_OR_RETURN(backend, create_backend(options));
  // The backend can tell which of the addresses are a device's.
  for (const MemoryTensor& tensor : checkpoint.tensors) {
    const bool said = tensor.memory == TensorMemory::kDevice;
    if (tensor.data.empty() || said == backend->is_device_memory(tensor.data.data()) || backend->uses_host_memory()) {
      continue;
    }
    return {StatusCode::kInvalidArgument, "tensors: " + quote(tensor.name) + " is said to be in " +
                                              (said ? "device" : "host") + " memory and is not; accepted: where it is"};
  }
  MemoryTensors::Fetch fetch;
  if (!backend->uses_host_memory()) {
    fetch = [this](void* host, const void* device, std::size_t bytes) {
      return backend->download(host, device, bytes);
    };
  }
  DSV4RT_ASSIGN_OR_RETURN(const MemoryTensors tensors, MemoryTensors::create(checkpoint.tensors, std::move(fetch)));
  return load_weights(tensors, specs);
}

Status Engine::Impl::check_options() {
  if (options.graphs.max_graphs < 0 || options.graphs.max_tokens < 0 || options.graphs.max_bytes < 0) {
    return {StatusCode::kInvalidArgument, "graphs: max_graphs " + std::to_string(options.graphs.max_graphs) +
                                              ", max_tokens " + std::to_string(options.graphs.max_tokens) +
                                              ", max_bytes " + std::to_string(options.graphs.max_bytes) +
                                              "; accepted: 0 or more"};
  }
  const PrefixCacheOptions& prefixes = options.prefix_cache;
  if (prefixes.tenant_quota_tokens < 0 || prefixes.policy.interval_tokens < 0) {
    return {StatusCode::kInvalidArgument,
            "prefix_cache: tenant_quota_tokens " + std::to_string(prefixes.tenant_quota_tokens) +
                ", policy.interval_tokens " + std::to_string(prefixes.policy.interval_tokens) +
                "; accepted: 0 or more"};
  }
  graphs = GraphCache(static_cast<std::size_t>(options.graphs.max_graphs), options.graphs.max_bytes);
  DSV4RT_ASSIGN_OR_RETURN(settings.profile, Profile::from_name(options.profile));
  settings.row_format = options.row_format.value_or(settings.profile.default_row_format);
  settings.index_format = options.index_format.value_or(settings.profile.default_index_format);
  return {};
}

Result<std::vector<LayerSpec>> Engine::Impl::choose_layers(ModelConfig full) {
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule full_schedule, LayerSchedule::create(full));
  DSV4RT_ASSIGN_OR_RETURN(config, restrict_layers(std::move(full), options.first_layer, options.layer_count));
  DSV4RT_ASSIGN_OR_RETURN(settings.config, shard_config(config, shard));
  DSV4RT_ASSIGN_OR_RETURN(schedule, LayerSchedule::create(config));
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    layer_ids.emplace_back(static_cast<std::int32_t>(options.first_layer + i));
  }

  std::vector<LayerSpec> specs;
  for (const LayerId layer : layer_ids) specs.push_back(full_schedule.layer(layer));
  layer_specs = specs;
  return specs;
}

Status Engine::Impl::load_weights(const TensorSource& source, std::span<const LayerSpec> specs) {
  // Weights are read and checked first: a broken checkpoint is reported before memory is taken.
  DSV4RT_ASSIGN_OR_RETURN(
      std::vector<HostAttentionWeights> host,
      load_attention_weights(source, config, specs,
                             options.allow_non_finite_weights ? NonFinite::kAllowed : NonFinite::kRefused, shard));
  if (backend == nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(backend, create_backend(options));
  }
  if (peers != nullptr) {
    if (peers->uses_host_memory() != backend->uses_host_memory()) {
      return {StatusCode::kInvalidArgument, "parallel: a communicator over " + printable(peers->transport()) +
                                                " with backend " + printable(backend->name()) +
                                                "; accepted: mpi with cpu, nccl with cuda"};
    }
    (options.parallel.tensor != nullptr ? settings.ranks : settings.context) = peers;
    settings.context_min_tokens = options.parallel.context_min_tokens;
    settings.context_share_outputs = options.parallel.context_share_outputs;
    settings.stream = backend->native_stream();
  }
  auto packed = std::make_shared<SharedWeights>();
  for (const HostAttentionWeights& layer : host) {
    memory.weight_bytes +=
        planned_layer_bytes(layer, [&](const HostLinear& linear) { return backend->packed_bytes(linear); });
    packed->quantized_linears |= layer.wq_b.encoding != WeightEncoding::kBf16;
    packed->fp8_wo_a |= layer.wo_a.encoding == WeightEncoding::kFp8Block128;
  }
  packed->digest = sampled_weights_digest(host);
  DSV4RT_RETURN_IF_ERROR(prepare_memory(*packed));
  DSV4RT_ASSIGN_OR_RETURN(packed->backend, create_weights_backend(options));
  packed->layers.reserve(host.size());
  for (HostAttentionWeights& layer : host) {
    if (!options.allow_non_finite_weights) {
      if (Status finite = check_finite_matrices(layer); !finite.ok()) {
        return {finite.code(), shown(source.source_name()) + ": " + finite.message()};
      }
    }
    DSV4RT_ASSIGN_OR_RETURN(LayerWeights uploaded,
                            upload_layer_weights(*packed->backend, settings.config, layer, shard));
    packed->layers.push_back(std::move(uploaded));
    // As its packed form takes memory, so that a layer is in memory twice only while it is packed.
    drop_matrices(source, layer);
    layer = {};
  }
  DSV4RT_RETURN_IF_ERROR(packed->backend->synchronize());
  packed->config = config;
  packed->schedule = schedule;
  packed->layer_ids = layer_ids;
  packed->layer_specs = layer_specs;
  weights = std::move(packed);
  make_layers();
  return {};
}

Status Engine::Impl::load_sharing(const EngineOptions& requested, const Impl& owner) {
  options = requested;
  if (options.parallel.tensor != nullptr || options.parallel.context != nullptr || owner.peers != nullptr) {
    return {StatusCode::kUnsupported, "create_sharing: parallel: an engine of several ranks has weights of its own"};
  }
  DSV4RT_RETURN_IF_ERROR(check_options());
  DSV4RT_RETURN_IF_ERROR(check_same_weights(owner));
  weights = owner.weights;
  config = weights->config;
  settings.config = weights->config;
  schedule = weights->schedule;
  layer_ids = weights->layer_ids;
  layer_specs = weights->layer_specs;
  DSV4RT_ASSIGN_OR_RETURN(backend, create_backend(options));
  DSV4RT_RETURN_IF_ERROR(prepare_memory(*weights));
  make_layers();
  return {};
}

Status Engine::Impl::check_same_weights(const Impl& owner) const {
  const auto other = [](const char* field, const std::string& given, const std::string& accepted) {
    return Status{StatusCode::kInvalidArgument, std::string("create_sharing: ") + field + ": " + given +
                                                    "; accepted: " + accepted +
                                                    ", as of the engine whose weights these are"};
  };
  const EngineOptions& theirs = owner.options;
  if (!options.checkpoint.empty() && options.checkpoint != theirs.checkpoint) {
    return other("checkpoint", quote(options.checkpoint.native()), "none, or " + quote(theirs.checkpoint.native()));
  }
  if (options.profile != theirs.profile) return other("profile", quote(options.profile), quote(theirs.profile));
  if (options.backend != theirs.backend) return other("backend", quote(options.backend), quote(theirs.backend));
  if (options.linear_precision != theirs.linear_precision) {
    return other("linear_precision", std::string(linear_precision_name(options.linear_precision)),
                 std::string(linear_precision_name(theirs.linear_precision)));
  }
  const std::tuple<const char*, std::int64_t, std::int64_t> fields[] = {
      {"device", options.device, options.backend == "cuda" ? theirs.device : options.device},
      {"first_layer", options.first_layer, theirs.first_layer},
      {"layer_count", options.layer_count, theirs.layer_count},
      {"allow_non_finite_weights", options.allow_non_finite_weights, theirs.allow_non_finite_weights},
  };
  for (const auto& [field, given, accepted] : fields) {
    if (given != accepted) return other(field, std::to_string(given), std::to_string(accepted));
  }
  return {};
}

Status Engine::Impl::prepare_memory(const SharedWeights& of) {
  if (options.profiler_ranges) {
    stage_ranges = std::make_unique<StageRanges>(*backend);
    stage_observer = stage_ranges.get();
  }
  if (options.limits.boundary_states > 0) identify_prefixes(of.digest);
  return plan_and_allocate(of);
}

void Engine::Impl::make_layers() {
  layers.reserve(weights->layers.size());
  for (std::size_t i = 0; i < weights->layers.size(); ++i) {
    const LayerSpec& spec = schedule.layers()[i];
    const Buffer& frequencies = spec.rope == RopeChoice::kPlain ? plain_frequencies : compressed_frequencies;
    layers.emplace_back(settings, spec, schedule.ratio_class(spec.ratio),
                        std::shared_ptr<const LayerWeights>(weights, &weights->layers[i]), cache.layer_cache(spec),
                        frequencies.as<float>());
  }
  step.layer_done.resize(layers.size());
}

// Prefixes of one engine are content of its weights, in its formats; an engine that is another in any of these computes
// other bytes for the same token ids.
void Engine::Impl::identify_prefixes(const Sha256::Digest& digest) {
  const SnapshotIdentity identity = dsv4rt::snapshot_identity(options.profile, config, options.first_layer, digest);
  Sha256 checkpoint;
  checkpoint.update(identity.config);
  checkpoint.update(identity.weights);
  const std::string formats = "profile " + identity.profile + ", backend " + options.backend + ", rows " +
                              std::string(row_format_name(settings.row_format)) + ", index keys " +
                              std::string(index_key_format_name(settings.index_format)) + ", blocks of " +
                              std::to_string(options.csa_rows_per_block) + " and " +
                              std::to_string(options.hca_rows_per_block) + " rows, linears " +
                              std::string(linear_precision_name(options.linear_precision));
  prefix_identity = PrefixHasher::engine_digest(checkpoint.bytes(), std::as_bytes(std::span(formats)));
}

Status Engine::Impl::plan_and_allocate(const SharedWeights& of) {
  const CacheFormats formats{.rows = settings.row_format,
                             .index_keys = settings.index_format,
                             .csa_rows_per_block = options.csa_rows_per_block,
                             .hca_rows_per_block = options.hca_rows_per_block,
                             .draft_budget_tokens = options.draft_budget_tokens};
  DSV4RT_ASSIGN_OR_RETURN(layout, CacheLayout::create(settings.config, schedule, formats));
  DSV4RT_ASSIGN_OR_RETURN(memory.cache, plan_memory(settings.config, schedule, layout, options.limits));

  const std::int32_t max_tokens = options.limits.max_step_tokens;
  WorkspaceShape shape = WorkspaceShape::of(settings.config, schedule, settings.row_format, max_tokens, shard.size);
  shape.has_codes = of.fp8_wo_a && backend->linear_precision() == LinearPrecision::kFp8;
  if (settings.context != nullptr) {
    shape.packed_row_bytes = packed_rows_bytes(schedule, settings.row_format, settings.index_format, max_tokens,
                                               options.limits.max_sequences, settings.context->size());
  }
  const std::int64_t hidden_bytes = std::int64_t{max_tokens} * settings.config.hidden_size * std::int64_t{sizeof(bf16)};
  memory.workspace_bytes = step_workspace_bytes(shape, settings.config);
  if (options.check_outputs) memory.workspace_bytes += OutputWatch::bytes(options.limits.max_sequences);
  if (options.draft_budget_tokens > 0) memory.workspace_bytes += LateCounts::bytes(options.limits.max_sequences);
  memory.scratch_bytes = backend->scratch_bytes(step_shapes(settings.config, schedule, options.limits));
  // Of the communicator: what sums take, or with 0 elements what shares do.
  const std::int64_t rank_elements = settings.ranks != nullptr ? max_tokens * config.hidden_size : 0;
  if (peers != nullptr) memory.exchange_bytes = peers->scratch_bytes(rank_elements);
  if (backend->can_capture() && options.graphs.max_graphs > 0) memory.graph_bytes = options.graphs.max_bytes;
  memory.total_bytes = memory.cache.total_bytes + memory.weight_bytes + memory.workspace_bytes + memory.scratch_bytes +
                       memory.exchange_bytes + memory.graph_bytes;
  if (options.memory_limit_bytes > 0 && memory.total_bytes > options.memory_limit_bytes) {
    return {StatusCode::kResourceExhausted,
            "memory plan of " + std::to_string(memory.total_bytes) + " B exceeds the limit of " +
                std::to_string(options.memory_limit_bytes) + " B: " + memory_text(memory)};
  }

  const PrefixCacheSettings prefixes{.engine = prefix_identity,
                                     .policy = options.prefix_cache.policy,
                                     .eviction = options.prefix_cache.eviction,
                                     .tenant_quota_tokens = options.prefix_cache.tenant_quota_tokens,
                                     .record_events = static_cast<bool>(options.prefix_cache.on_event)};
  DSV4RT_ASSIGN_OR_RETURN(manager, KVCacheManager::create(schedule, layout, memory.cache, prefixes, next_handles()));
  last_saved.resize(static_cast<std::size_t>(options.limits.max_sequences));
  held.resize(static_cast<std::size_t>(options.limits.max_sequences));
  std::vector<std::int32_t> strides;
  for (std::size_t i = 0; i < layout.pools().size(); ++i) strides.push_back(manager->table_stride(static_cast<int>(i)));
  const bool guarded = options.poison_freed_blocks.value_or(kDebugBuild);
  const auto guard_bytes = guarded ? CacheMemory::GuardBytes::kAround : CacheMemory::GuardBytes::kNone;
  DSV4RT_ASSIGN_OR_RETURN(cache, CacheMemory::allocate(*backend, layout, memory.cache, strides, guard_bytes));
  if (guarded) {
    DSV4RT_ASSIGN_OR_RETURN(guard, CacheGuard::create(*backend, layout, cache));
    manager->record_freed_blocks();
  }
  DSV4RT_ASSIGN_OR_RETURN(boundaries, BoundaryMemory::allocate(*backend, layout, cache, memory.cache));
  for (const PoolSpec& pool : layout.pools()) add_role(unit_roles, pool.role);
  for (const BoundarySpec& rows : layout.boundary()) {
    add_role(state_roles, layout.slots()[static_cast<std::size_t>(rows.slot)].role);
  }
  DSV4RT_ASSIGN_OR_RETURN(metadata, backend->allocate(manager->step_offsets().total_bytes, "step metadata"));
  const auto upload_bytes = std::max(metadata.size(), static_cast<std::size_t>(memory.cache.table_row_bytes));
  DSV4RT_RETURN_IF_ERROR(backend->reserve_step_upload(upload_bytes));
  DSV4RT_ASSIGN_OR_RETURN(workspace_memory, backend->allocate(workspace_bytes(shape), "workspace"));
  workspace = workspace_at(shape, workspace_memory.data());
  DSV4RT_RETURN_IF_ERROR(backend->reserve_scratch(static_cast<std::size_t>(memory.scratch_bytes)));
  if (peers != nullptr) DSV4RT_RETURN_IF_ERROR(peers->reserve(rank_elements));
  DSV4RT_ASSIGN_OR_RETURN(layer_input, backend->allocate(static_cast<std::size_t>(hidden_bytes), "layer input"));
  DSV4RT_ASSIGN_OR_RETURN(layer_output, backend->allocate(static_cast<std::size_t>(hidden_bytes), "layer output"));
  if (options.check_outputs) {
    DSV4RT_ASSIGN_OR_RETURN(outputs, OutputWatch::create(*backend, options.limits.max_sequences));
  }
  if (options.draft_budget_tokens > 0) {
    DSV4RT_ASSIGN_OR_RETURN(late_counts, LateCounts::create(*backend, options.limits.max_sequences,
                                                            options.draft_budget_tokens, schedule.ratios()));
  }
  step.entries.reserve(static_cast<std::size_t>(options.limits.max_sequences));
  DSV4RT_ASSIGN_OR_RETURN(plain_frequencies, upload_frequencies(*backend, settings.config, RopeChoice::kPlain));
  DSV4RT_ASSIGN_OR_RETURN(compressed_frequencies,
                          upload_frequencies(*backend, settings.config, RopeChoice::kCompressed));
  // The caller may write input() from any stream: what fills it with zeros is not under way any more.
  return backend->synchronize();
}

}  // namespace dsv4rt
