#include "whole_plan.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "attention/step_shapes.h"
#include "backend/cpu/cpu_backend.h"
#if defined(DSV4RT_HAVE_CUDA)
#include "backend/cuda/cuda_backend.h"
#endif
#include "base/message_text.h"
#include "base/try.h"
#include "byte_size.h"
#include "cache/memory_plan.h"
#include "checkpoint/config_encoding.h"
#include "checkpoint/expected_tensors.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "dist/exchange_memory.h"
#include "dsv4rt/engine.h"
#include "engine/restrict_layers.h"
#include "engine/step_workspace.h"
#include "layout/row_format.h"
#include "model/tensor_shard.h"
#include "text_table.h"
#include "tools/lib/weight_plan.h"

namespace dsv4rt::cli {
namespace {

// What an engine with default options takes besides its cache.
Result<StepMemory> plan_steps(const PlanFlags& flags, const PlannedModel& model, const CacheFormats& formats,
                              const CacheLimits& limits) {
  const ModelConfig& config = model.rank_config;
  const StepShapes shapes = step_shapes(config, model.schedule, limits);
  StepMemory memory;
  memory.weight_bytes = model.rank_weight_bytes;
  WorkspaceShape shape =
      WorkspaceShape::of(config, model.schedule, formats.rows, limits.max_step_tokens, flags.tensor_ranks);
  if (flags.context_ranks > 1) {
    shape.packed_row_bytes = packed_rows_bytes(model.schedule, formats.rows, formats.index_keys, limits.max_step_tokens,
                                               limits.max_sequences, flags.context_ranks);
  }
  memory.workspace_bytes = step_workspace_bytes(shape, config);
  // Of the communicator: what sums take, or with 0 elements what shares do.
  const std::int64_t elements = flags.tensor_ranks > 1 ? limits.max_step_tokens * config.hidden_size : 0;
  if (const std::int32_t ranks = std::max(flags.tensor_ranks, flags.context_ranks); ranks > 1) {
    memory.exchange_bytes = flags.backend == "cuda" ? nccl_exchange_bytes(elements, ranks) : mpi_exchange_bytes(ranks);
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

const char* encoding_name(WeightEncoding encoding) {
  switch (encoding) {
    case WeightEncoding::kFp8Block128:
      return "fp8";
    case WeightEncoding::kNvfp4:
      return "nvfp4";
    case WeightEncoding::kBf16:
      break;
  }
  return "bf16";
}

Result<PlannedModel> planned_model(const PlanFlags& flags) {
  const bool stored = !flags.checkpoint.empty();
  const std::filesystem::path config_file = stored ? flags.checkpoint + "/config.json" : flags.config;
  if (stored && flags.tensor_ranks > 1) {
    return Status{StatusCode::kUnsupported, "--tp: a rank's weights are planned from --config; --checkpoint: one rank"};
  }
  DSV4RT_ASSIGN_OR_RETURN(ModelConfig whole, ModelConfig::from_file(config_file));
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule all, LayerSchedule::create(whole));
  LayerRange range{0, static_cast<std::int32_t>(whole.num_hidden_layers - 1)};
  if (!flags.layers.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(range, parse_layer_range("--layers", flags.layers));
    if (range.last >= whole.num_hidden_layers) {
      return Status{StatusCode::kInvalidArgument, "--layers: '" + printable(flags.layers) +
                                                      "'; the model has layers 0 to " +
                                                      std::to_string(whole.num_hidden_layers - 1)};
    }
  }
  const std::int32_t count = range.last - range.first + 1;
  const auto specs = all.layers().subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(count));
  PlannedModel model;
  DSV4RT_ASSIGN_OR_RETURN(model.config, restrict_layers(std::move(whole), range.first, count));
  DSV4RT_ASSIGN_OR_RETURN(model.schedule, LayerSchedule::create(model.config));
  DSV4RT_ASSIGN_OR_RETURN(model.rank_config, shard_config(model.config, {.rank = 0, .size = flags.tensor_ranks}));
  DSV4RT_ASSIGN_OR_RETURN(const PackedBytes packed_bytes, packed_bytes_of(flags.backend));
  if (stored) {
    model.encoding = "as stored";
    DSV4RT_ASSIGN_OR_RETURN(model.weight_bytes,
                            planned_weight_bytes(flags.checkpoint, model.config, specs, packed_bytes));
    model.rank_weight_bytes = model.weight_bytes;
    return model;
  }
  for (const LayerSpec& spec : specs) DSV4RT_RETURN_IF_ERROR(check_attention_dimensions(model.config, spec));
  DSV4RT_ASSIGN_OR_RETURN(const WeightEncoding encoding, flags.weights.empty()
                                                             ? weight_encoding_of_config(config_file)
                                                             : weight_encoding_from_name(flags.weights));
  model.encoding = encoding_name(encoding);
  model.weight_bytes = planned_weight_bytes(model.config, specs, encoding, packed_bytes);
  model.rank_weight_bytes = planned_weight_bytes(model.config, specs, encoding, packed_bytes, flags.tensor_ranks);
  return model;
}

std::string what_fits_text(const StepMemory& steps, std::int64_t memory_bytes, std::int64_t other_bytes) {
  return "--memory " + bytes_text(memory_bytes) + ": --other " + bytes_text(other_bytes) + ", weights " +
         bytes_text(steps.weight_bytes) + ", workspace " + bytes_text(steps.workspace_bytes) + ", scratch " +
         bytes_text(steps.scratch_bytes) + ", graphs " + bytes_text(steps.graph_bytes) + ", exchange " +
         bytes_text(steps.exchange_bytes);
}

// As many sequences of limits.max_context_tokens as fit beside everything else.
Status count_sequences(const PlanFlags& flags, const CacheLayout& layout, CacheLimits limits, std::int64_t memory_bytes,
                       std::int64_t other_bytes, WholePlan& whole) {
  constexpr std::int32_t kMostSequences = 1 << 20;
  const auto plan_for = [&](std::int32_t sequences) -> Result<WholePlan> {
    WholePlan plan;
    limits.max_sequences = sequences;
    DSV4RT_ASSIGN_OR_RETURN(plan.steps, plan_steps(flags, whole.model, layout.formats(), limits));
    DSV4RT_ASSIGN_OR_RETURN(plan.cache, plan_memory(whole.model.rank_config, whole.model.schedule, layout, limits));
    return plan;
  };
  const auto fits = [&](const WholePlan& plan) {
    return plan.cache.total_bytes + plan.steps.total_bytes() <= memory_bytes - other_bytes;
  };
  DSV4RT_ASSIGN_OR_RETURN(WholePlan best, plan_for(1));
  if (!fits(best)) {
    std::string text = what_fits_text(best.steps, memory_bytes, other_bytes) + "; one sequence of " +
                       std::to_string(limits.max_context_tokens) + " tokens takes " +
                       bytes_text(best.cache.total_bytes) + " of cache:";
    for (const PlannedRegion& region : best.cache.regions) {
      text += " " + std::string(cache_role_name(region.role)) + " " + std::to_string(region.total_bytes) + " B,";
    }
    const std::int64_t needed = best.cache.total_bytes + best.steps.total_bytes() + other_bytes;
    return {StatusCode::kResourceExhausted,
            text + " which is " + bytes_text(needed - memory_bytes) + " more than there is"};
  }
  std::int32_t most = 1;      // fit
  std::int32_t too_many = 2;  // do not, once found
  while (too_many <= kMostSequences) {
    Result<WholePlan> plan = plan_for(too_many);
    if (!plan || !fits(*plan)) break;
    best = std::move(plan).value();
    most = too_many;
    too_many *= 2;
  }
  while (too_many - most > 1) {
    const std::int32_t middle = most + (too_many - most) / 2;
    Result<WholePlan> plan = plan_for(middle);
    const bool fit = plan.ok() && fits(*plan);
    if (fit) best = std::move(plan).value();
    (fit ? most : too_many) = middle;
  }
  whole.cache = std::move(best.cache);
  whole.steps = best.steps;
  whole.counted = true;
  return {};
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  return std::to_string(bytes) + " (" + human_bytes(static_cast<double>(bytes)) + ")";
}

namespace {

constexpr std::int32_t kMostRanks = 1024;  // what --cp accepts

Status check_ranks(const PlanFlags& flags) {
  if (flags.tensor_ranks > 1 && flags.context_ranks > 1) {
    return {StatusCode::kInvalidArgument, "--tp and --cp: accepted: one of them above 1"};
  }
  if (flags.context_ranks < 1 || flags.context_ranks > kMostRanks) {
    return {StatusCode::kInvalidArgument, "--cp: " + std::to_string(flags.context_ranks) + "; accepted: 1 to " +
                                              std::to_string(kMostRanks) + " ranks"};
  }
  if (!flags.prompt.empty() && flags.context_ranks == 1) {
    return {StatusCode::kInvalidArgument, "--prompt: what one rank gives to none; needed: --cp above 1"};
  }
  return {};
}

Status plan_prompt(const PlanFlags& flags, const CacheLayout& layout, WholePlan& plan) {
  if (flags.context_ranks == 1) return {};
  const CacheLimits& limits = plan.cache.limits;
  PlannedPrompt prompt{.tokens = std::min<std::int64_t>(limits.max_step_tokens, limits.max_context_tokens)};
  if (!flags.prompt.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(prompt.tokens, parse_token_count("--prompt", flags.prompt));
    if (prompt.tokens > limits.max_context_tokens) {
      return {StatusCode::kInvalidArgument, "--prompt: " + std::to_string(prompt.tokens) + "; accepted: up to " +
                                                std::to_string(limits.max_context_tokens) +
                                                " tokens, the longest "
                                                "sequence"};
    }
  }
  prompt.exchange = prompt_exchange(plan.model.rank_config, plan.model.schedule, layout, flags.context_ranks,
                                    {.tokens = prompt.tokens,
                                     .step_tokens = limits.max_step_tokens,
                                     .min_tokens = ParallelOptions{}.context_min_tokens});
  prompt.cache_bytes = sequence_cache_bytes(layout, prompt.tokens);
  plan.prompt = std::move(prompt);
  return {};
}

// Cache and steps of plan.model.
Status plan_limits(const PlanFlags& flags, const CacheLayout& layout, std::int64_t other_bytes, WholePlan& plan) {
  const PlannedModel& model = plan.model;
  CacheLimits limits{
      .max_sequences = flags.sequences,
      .max_context_tokens = flags.max_context == 0 ? model.config.max_position_embeddings : flags.max_context,
      .max_step_tokens = flags.max_step_tokens,
      .pool_tokens = flags.pool_tokens,
      .boundary_states = flags.prefix_states};
  std::int64_t memory_bytes = 0;
  if (!flags.memory.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(memory_bytes, parse_byte_size("--memory", flags.memory));
  }
  if (!flags.context.empty()) {
    if (flags.memory.empty()) {
      return {StatusCode::kInvalidArgument, "--context: how many such sequences fit into what? needed: --memory"};
    }
    DSV4RT_ASSIGN_OR_RETURN(limits.max_context_tokens, parse_token_count("--context", flags.context));
    limits.pool_tokens = 0;
    DSV4RT_RETURN_IF_ERROR(count_sequences(flags, layout, limits, memory_bytes, other_bytes, plan));
    plan.cache_bytes = memory_bytes - other_bytes - plan.steps.total_bytes();
    return {};
  }
  DSV4RT_ASSIGN_OR_RETURN(plan.steps, plan_steps(flags, model, layout.formats(), limits));
  if (flags.memory.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(plan.cache, plan_memory(model.rank_config, model.schedule, layout, limits));
    return {};
  }
  DSV4RT_ASSIGN_OR_RETURN(plan.cache, fit_memory(model.rank_config, model.schedule, layout, limits, memory_bytes,
                                                 other_bytes + plan.steps.total_bytes()));
  plan.cache_bytes = memory_bytes - other_bytes - plan.steps.total_bytes();
  return {};
}

}  // namespace

Result<WholePlan> make_plan(const PlanFlags& flags, std::int64_t other_bytes) {
  DSV4RT_RETURN_IF_ERROR(check_ranks(flags));
  WholePlan plan;
  DSV4RT_ASSIGN_OR_RETURN(plan.model, planned_model(flags));
  CacheFormats formats = flags.formats;
  DSV4RT_ASSIGN_OR_RETURN(formats.rows, row_format_from_name(flags.cache_format));
  DSV4RT_ASSIGN_OR_RETURN(formats.index_keys, index_key_format_from_name(flags.index_format));
  DSV4RT_ASSIGN_OR_RETURN(const CacheLayout layout,
                          CacheLayout::create(plan.model.rank_config, plan.model.schedule, formats));
  DSV4RT_RETURN_IF_ERROR(plan_limits(flags, layout, other_bytes, plan));
  DSV4RT_RETURN_IF_ERROR(plan_prompt(flags, layout, plan));
  return plan;
}

}  // namespace dsv4rt::cli
