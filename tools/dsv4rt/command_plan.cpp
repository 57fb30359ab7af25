// dsv4rt plan: what a cache takes, and what fits into a given memory.

#include <iostream>
#include <memory>
#include <optional>

#include "attention/step_shapes.h"
#include "backend/cpu/cpu_backend.h"
#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_backend.h"
#endif
#include "base/arithmetic.h"
#include "base/message_text.h"
#include "base/try.h"
#include "byte_size.h"
#include "cache/memory_plan.h"
#include "checkpoint/expected_tensors.h"
#include "command.h"
#include "dist/exchange_memory.h"
#include "dsv4rt/engine.h"
#include "engine/step_workspace.h"
#include "model/tensor_shard.h"
#include "outputs.h"
#include "replay/memory_plan_json.h"
#include "text_table.h"
#include "tools/lib/prefix_costs.h"

namespace dsv4rt::cli {
namespace {

struct PlanFlags {
  std::string config;
  std::string memory;
  std::string other = "";
  std::string cache_format = "fp8_ds_mla";
  std::string index_format = "mxfp4";
  std::string backend = "cpu";
  std::int32_t threads = 0;
  std::int64_t max_context = 0;
  std::int32_t sequences = 1;
  std::int32_t max_step_tokens = 2048;
  std::int64_t pool_tokens = 0;
  std::int32_t prefix_states = 0;
  std::int32_t tensor_ranks = 1;
  CacheFormats formats;
  std::string json;
  Outputs outputs;
};

// What steps take besides the cache and what --other gives.
struct StepMemory {
  std::int64_t workspace_bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::int64_t graph_bytes = 0;
  std::int64_t exchange_bytes = 0;  // with several ranks

  [[nodiscard]] std::int64_t total_bytes() const {
    return workspace_bytes + scratch_bytes + graph_bytes + exchange_bytes;
  }
};

// Attention weights of an FP8 checkpoint, as they are stored.
struct WeightBytes {
  std::int64_t of_model = 0;
  std::int64_t of_rank = 0;
};

WeightBytes weight_bytes(const ModelConfig& config, const LayerSchedule& schedule, std::int32_t ranks) {
  WeightBytes bytes;
  for (const LayerSpec& layer : schedule.layers()) {
    for (const AttentionTensorSpec& tensor : attention_tensor_specs(config, layer)) {
      std::int64_t values = 1;
      for (const std::int64_t size : tensor.shape) values *= size;
      std::int64_t stored = values * (tensor.kind == AttentionTensorKind::kFloatVector ? 4 : 2);
      if (tensor.kind == AttentionTensorKind::kQuantizedLinear) {
        stored = values + ceil_div<std::int64_t>(tensor.shape[0], 128) * ceil_div<std::int64_t>(tensor.shape[1], 128);
      }
      const bool shared = tensor.tensor == AttentionTensor::kWqB || tensor.tensor == AttentionTensor::kWoA ||
                          tensor.tensor == AttentionTensor::kWoB;
      bytes.of_model += stored;
      bytes.of_rank += shared ? stored / ranks : stored;
    }
  }
  return bytes;
}

struct WholePlan {
  MemoryPlan cache;
  StepMemory steps;
  WeightBytes weights;
  std::optional<std::int64_t> cache_bytes;  // what --memory leaves for the cache
};

nlohmann::ordered_json prefix_json(const WholePlan& whole) {
  const MemoryPlan& plan = whole.cache;
  nlohmann::ordered_json json;
  json["unit_tokens"] = plan.prefix_unit_tokens;
  json["states"] = plan.limits.boundary_states;
  json["bytes_per_state"] = plan.bytes_per_boundary_state;
  json["state_bytes"] = plan.boundary_state_bytes;
  json["table_row_bytes"] = plan.table_row_bytes;
  for (const PrefixIntervalCost& cost : prefix_interval_costs(plan, whole.cache_bytes.value_or(plan.total_bytes))) {
    auto& entry = json["intervals"].emplace_back();
    entry["interval_tokens"] = cost.interval_tokens;
    entry["bytes_per_token"] = cost.bytes_per_token;
    if (!whole.cache_bytes) continue;  // nobody said what they may fill
    entry["cached_tokens_that_fit"] = cost.cached_tokens;
    entry["states"] = cost.states;
  }
  return json;
}

nlohmann::ordered_json plan_json(const WholePlan& whole, const PlanFlags& flags, std::int64_t other_bytes) {
  const MemoryPlan& plan = whole.cache;
  nlohmann::ordered_json json;
  json["row_format"] = flags.cache_format;
  json["index_format"] = flags.index_format;
  json["max_sequences"] = plan.limits.max_sequences;
  json["max_context_tokens"] = plan.limits.max_context_tokens;
  json["pool_tokens"] = plan.limits.pool_tokens;
  json["bytes_per_token"] = plan.bytes_per_token;
  json["bytes_per_sequence"] = plan.bytes_per_sequence;
  json["sharing_unit_tokens"] = plan.sharing_unit_tokens;
  json["roles"] = replay::planned_regions_json(plan);
  json["block_table_bytes"] = plan.block_table_bytes;
  json["step_metadata_bytes"] = plan.step_metadata_bytes;
  if (plan.limits.boundary_states > 0) json["prefix_cache"] = prefix_json(whole);
  json["cache_bytes"] = plan.total_bytes;
  json["backend"] = flags.backend;
  json["workspace_bytes"] = whole.steps.workspace_bytes;
  json["scratch_bytes"] = whole.steps.scratch_bytes;
  json["graph_bytes"] = whole.steps.graph_bytes;
  if (flags.tensor_ranks > 1) {
    json["tensor_parallel"] = {{"ranks", flags.tensor_ranks},
                               {"exchange_bytes", whole.steps.exchange_bytes},
                               {"fp8_weight_bytes", whole.weights.of_model},
                               {"fp8_weight_bytes_of_a_rank", whole.weights.of_rank}};
  }
  json["other_bytes"] = other_bytes;
  json["total_bytes"] = plan.total_bytes + whole.steps.total_bytes() + other_bytes;
  return json;
}

std::string bytes_text(std::int64_t bytes) {
  return std::to_string(bytes) + " (" + human_bytes(static_cast<double>(bytes)) + ")";
}

std::string states_line(const MemoryPlan& plan) {
  if (plan.limits.boundary_states == 0) return "";
  return "boundary states: " + std::to_string(plan.limits.boundary_states) + ", " +
         bytes_text(plan.boundary_state_bytes) + "; table row " + std::to_string(plan.table_row_bytes) + "\n";
}

void print_prefix_costs(const WholePlan& whole) {
  const MemoryPlan& plan = whole.cache;
  std::vector<std::string> header{"state every", "B/cached token"};
  if (whole.cache_bytes) header.insert(header.end(), {"cached tokens that fit", "states"});
  TextTable table(std::move(header));
  for (const PrefixIntervalCost& cost : prefix_interval_costs(plan, whole.cache_bytes.value_or(plan.total_bytes))) {
    std::vector<std::string> cells{cost.interval_tokens == 0 ? "at the ends" : std::to_string(cost.interval_tokens),
                                   fixed(cost.bytes_per_token, 0)};
    if (whole.cache_bytes) {
      cells.insert(cells.end(), {std::to_string(cost.cached_tokens), std::to_string(cost.states)});
    }
    table.add_row(std::move(cells));
  }
  std::cout << "prefix cache, units of " << plan.prefix_unit_tokens << " tokens, "
            << bytes_text(plan.bytes_per_boundary_state) << " a state\n"
            << table.to_string();
}

std::string ranks_line(const WholePlan& whole, const PlanFlags& flags) {
  if (flags.tensor_ranks == 1) return "";
  return "each of " + std::to_string(flags.tensor_ranks) + " ranks takes all of this, exchange " +
         bytes_text(whole.steps.exchange_bytes) + " and, of an FP8 checkpoint's " + bytes_text(whole.weights.of_model) +
         " of attention weights, " + bytes_text(whole.weights.of_rank) + "\n";
}

void print_plan(const WholePlan& whole, const PlanFlags& flags, std::int64_t other_bytes) {
  const MemoryPlan& plan = whole.cache;
  TextTable table({"role", "layers", "B/token", "B/sequence", "blocks/layer", "total bytes", "total"});
  for (const PlannedRegion& region : plan.regions) {
    table.add_row({std::string(cache_role_name(region.role)), std::to_string(region.layers),
                   fixed(region.bytes_per_token, 2), std::to_string(region.bytes_per_sequence),
                   std::to_string(region.blocks_per_layer), std::to_string(region.total_bytes),
                   human_bytes(static_cast<double>(region.total_bytes))});
  }
  std::cout << table.to_string();
  std::cout << "bytes per token: " << static_cast<std::int64_t>(plan.bytes_per_token) << " ("
            << fixed(plan.bytes_per_token, 2) << ")\n"
            << "bytes per sequence: " << plan.bytes_per_sequence << " ("
            << human_bytes(static_cast<double>(plan.bytes_per_sequence)) << ")\n"
            << "smallest shareable prefix: " << plan.sharing_unit_tokens << " tokens\n"
            << "block tables and step metadata: " << plan.block_table_bytes + plan.step_metadata_bytes << "\n"
            << "tokens that fit: " << plan.limits.pool_tokens << " in " << plan.limits.max_sequences
            << " sequences of at most " << plan.limits.max_context_tokens << "\n"
            << states_line(plan) << "cache: " << bytes_text(plan.total_bytes) << "\n"
            << "steps of at most " << plan.limits.max_step_tokens << " tokens, backend " << flags.backend
            << ": workspace " << bytes_text(whole.steps.workspace_bytes) << ", scratch "
            << bytes_text(whole.steps.scratch_bytes) << ", graphs at most " << bytes_text(whole.steps.graph_bytes)
            << "\n"
            << ranks_line(whole, flags) << "total" << (other_bytes > 0 ? " with other memory: " : " without weights: ")
            << bytes_text(plan.total_bytes + whole.steps.total_bytes() + other_bytes) << "\n";
  if (plan.limits.boundary_states > 0) print_prefix_costs(whole);
}

// The plan of an engine with default options.
Result<StepMemory> plan_steps(const PlanFlags& flags, const ModelConfig& config, const LayerSchedule& schedule,
                              RowFormat rows, const CacheLimits& limits) {
  const StepShapes shapes = step_shapes(config, schedule, limits);
  StepMemory memory;
  memory.workspace_bytes = step_workspace_bytes(
      WorkspaceShape::of(config, schedule, rows, limits.max_step_tokens, flags.tensor_ranks), config);
  if (flags.tensor_ranks > 1) {
    memory.exchange_bytes = flags.backend == "cuda"
                                ? nccl_exchange_bytes(limits.max_step_tokens * config.hidden_size, flags.tensor_ranks)
                                : mpi_exchange_bytes(flags.tensor_ranks);
  }
  if (flags.backend == "cpu") {
    DSV4RT_ASSIGN_OR_RETURN(const auto backend,
                            create_cpu_backend({.threads = flags.threads, .max_isa = {}, .on_warning = {}}));
    memory.scratch_bytes = backend->scratch_bytes(shapes);
    return memory;
  }
#if defined(DSV4RT_HAVE_CUDA)
  if (flags.backend == "cuda") {
    memory.scratch_bytes = cuda_scratch_bytes(shapes);
    memory.graph_bytes = GraphOptions{}.max_bytes;
    return memory;
  }
  return Status{StatusCode::kInvalidArgument, "--backend: '" + printable(flags.backend) + "'; accepted: cpu, cuda"};
#else
  return Status{StatusCode::kInvalidArgument,
                "--backend: '" + printable(flags.backend) + "'; accepted in this build: cpu"};
#endif
}

Result<WholePlan> make_plan(const PlanFlags& flags, std::int64_t other_bytes) {
  DSV4RT_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(flags.config));
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(config));
  CacheFormats formats = flags.formats;
  DSV4RT_ASSIGN_OR_RETURN(formats.rows, row_format_from_name(flags.cache_format));
  DSV4RT_ASSIGN_OR_RETURN(formats.index_keys, index_key_format_from_name(flags.index_format));
  DSV4RT_ASSIGN_OR_RETURN(const CacheLayout layout, CacheLayout::create(config, schedule, formats));
  const CacheLimits limits{
      .max_sequences = flags.sequences,
      .max_context_tokens = flags.max_context == 0 ? config.max_position_embeddings : flags.max_context,
      .max_step_tokens = flags.max_step_tokens,
      .pool_tokens = flags.pool_tokens,
      .boundary_states = flags.prefix_states};
  DSV4RT_ASSIGN_OR_RETURN(const ModelConfig rank_config, shard_config(config, {.rank = 0, .size = flags.tensor_ranks}));
  WholePlan plan;
  plan.weights = weight_bytes(config, schedule, flags.tensor_ranks);
  if (flags.memory.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(plan.cache, plan_memory(config, schedule, layout, limits));
    DSV4RT_ASSIGN_OR_RETURN(plan.steps, plan_steps(flags, rank_config, schedule, formats.rows, limits));
    return plan;
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t memory_bytes, parse_byte_size("--memory", flags.memory));
  DSV4RT_ASSIGN_OR_RETURN(plan.steps, plan_steps(flags, rank_config, schedule, formats.rows, limits));
  DSV4RT_ASSIGN_OR_RETURN(
      plan.cache, fit_memory(config, schedule, layout, limits, memory_bytes, other_bytes + plan.steps.total_bytes()));
  plan.cache_bytes = memory_bytes - other_bytes - plan.steps.total_bytes();
  return plan;
}

Status plan(const PlanFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  std::int64_t other_bytes = 0;
  if (!flags.other.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(other_bytes, parse_byte_size("--other", flags.other));
  }
  DSV4RT_ASSIGN_OR_RETURN(const WholePlan plan, make_plan(flags, other_bytes));
  if (flags.json != "-") print_plan(plan, flags, other_bytes);
  return flags.json.empty()
             ? Status{}
             : write_json_report(plan_json(plan, flags, other_bytes), flags.json, flags.outputs.existing());
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command =
      app.add_subcommand("plan", "Plan memory: bytes per role of the cache, what steps take, and what fits");
  command->add_option("--config", flags->config, "config.json of the model")->required();
  command->add_option("--memory", flags->memory, "Memory to fill, e.g. 80GiB; without it --pool-tokens decides");
  command->add_option("--other", flags->other, "Memory that weights and others take of it, e.g. 6GiB");
  command->add_option("--backend", flags->backend, "Whose scratch memory is planned: cpu, or cuda where it is built in")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "CPU threads, each of which has scratch; 0: all cores")
      ->capture_default_str();
  command->add_option("--max-context", flags->max_context, "Longest sequence in tokens; default the model's maximum");
  command->add_option("--sequences", flags->sequences, "Live sequences")->capture_default_str();
  command
      ->add_option("--pool-tokens", flags->pool_tokens,
                   "Tokens all sequences hold together; 0: sequences x max context")
      ->excludes("--memory");
  command->add_option("--max-step-tokens", flags->max_step_tokens, "Tokens in one step")->capture_default_str();
  command
      ->add_option("--prefix-states", flags->prefix_states,
                   "Boundary states of a prefix cache; also prints what states at intervals cost and what then fits")
      ->capture_default_str();
  command
      ->add_option("--tp", flags->tensor_ranks,
                   "Plan a rank of so many with tensor parallelism; also prints its weights")
      ->capture_default_str();
  command->add_option("--draft", flags->formats.draft_budget_tokens, "Draft tokens a step may reject")
      ->capture_default_str();
  command->add_option("--csa-rows-per-block", flags->formats.csa_rows_per_block, "Rows per block of CSA layers")
      ->capture_default_str();
  command->add_option("--hca-rows-per-block", flags->formats.hca_rows_per_block, "Rows per block of HCA layers")
      ->capture_default_str();
  command->add_option("--cache-format", flags->cache_format, "Rows: fp8_ds_mla, fp8_row, nvfp4 or bf16")
      ->capture_default_str();
  command->add_option("--index-format", flags->index_format, "Index keys: mxfp4, nvfp4, fp8 or bf16")
      ->capture_default_str();
  command->add_option("--json", flags->json, "Write the plan as JSON to a file, or - for stdout instead of the table");
  flags->outputs.add_to(*command, {"--json"});
  command->callback([flags, &chosen] { chosen = [flags] { return plan(*flags); }; });
}

}  // namespace dsv4rt::cli
