// dsv4rt plan: what an engine takes, and what fits into a given memory.

#include <algorithm>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/try.h"
#include "byte_size.h"
#include "command.h"
#include "outputs.h"
#include "replay/memory_plan_json.h"
#include "text_table.h"
#include "tools/lib/prefix_costs.h"
#include "whole_plan.h"

namespace dsv4rt::cli {
namespace {

struct PlanCommand : PlanFlags {
  std::string json;
  Outputs outputs;
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

nlohmann::ordered_json exchanged_json(std::span<const ExchangedBytes> ranks, std::int64_t tokens) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ExchangedBytes& bytes : ranks) {
    json.push_back({{"window_bytes", bytes.window},
                    {"projection_bytes", bytes.projections},
                    {"finished_row_bytes", bytes.finished},
                    {"received_bytes", bytes.total()},
                    {"bytes_per_token", static_cast<double>(bytes.total()) / static_cast<double>(tokens)}});
  }
  return json;
}

nlohmann::ordered_json prompt_json(const WholePlan& whole, const PlannedPrompt& prompt, const PlanFlags& flags) {
  nlohmann::ordered_json json;
  json["ranks"] = flags.context_ranks;
  json["exchange_bytes"] = whole.steps.exchange_bytes;
  json["prompt_tokens"] = prompt.tokens;
  json["steps"] = prompt.exchange.steps;
  json["dealt_out_steps"] = prompt.exchange.dealt_steps;
  json["prompt_cache_bytes"] = prompt.cache_bytes;
  json["output_bytes"] = prompt.exchange.outputs;
  json["cache_on_every_rank"] = exchanged_json(prompt.exchange.every, prompt.tokens);
  json["cache_on_rank_0"] = exchanged_json(prompt.exchange.one, prompt.tokens);
  return json;
}

nlohmann::ordered_json plan_json(const WholePlan& whole, const PlanFlags& flags, std::int64_t other_bytes) {
  const MemoryPlan& plan = whole.cache;
  nlohmann::ordered_json json;
  json["row_format"] = flags.cache_format;
  json["index_format"] = flags.index_format;
  json["max_sequences"] = plan.limits.max_sequences;
  if (whole.counted) json["sequences_that_fit"] = plan.limits.max_sequences;
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
  json["layers"] = whole.model.schedule.layers().size();
  json["weight_encoding"] = whole.model.encoding;
  json["weight_bytes"] = whole.steps.weight_bytes;
  json["workspace_bytes"] = whole.steps.workspace_bytes;
  json["scratch_bytes"] = whole.steps.scratch_bytes;
  json["graph_bytes"] = whole.steps.graph_bytes;
  if (flags.tensor_ranks > 1) {
    json["tensor_parallel"] = {{"ranks", flags.tensor_ranks},
                               {"exchange_bytes", whole.steps.exchange_bytes},
                               {"weight_bytes_of_all", whole.model.weight_bytes},
                               {"weight_bytes_of_a_rank", whole.model.rank_weight_bytes}};
  }
  if (whole.prompt) json["context_parallel"] = prompt_json(whole, *whole.prompt, flags);
  json["other_bytes"] = other_bytes;
  json["total_bytes"] = plan.total_bytes + whole.steps.total_bytes() + other_bytes;
  return json;
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
  if (flags.context_ranks > 1) {
    return "each of " + std::to_string(flags.context_ranks) + " ranks takes all of this and exchange " +
           bytes_text(whole.steps.exchange_bytes) + "\n";
  }
  if (flags.tensor_ranks == 1) return "";
  return "each of " + std::to_string(flags.tensor_ranks) + " ranks takes all of this and exchange " +
         bytes_text(whole.steps.exchange_bytes) + "; its weights are part of the model's " +
         bytes_text(whole.model.weight_bytes) + "\n";
}

// The most of any of the ranks.
ExchangedBytes most_of(std::span<const ExchangedBytes> ranks) {
  return *std::max_element(ranks.begin(), ranks.end(),
                           [](const ExchangedBytes& a, const ExchangedBytes& b) { return a.total() < b.total(); });
}

ExchangedBytes average_of(std::span<const ExchangedBytes> ranks) {
  ExchangedBytes sum;
  for (const ExchangedBytes& bytes : ranks) {
    sum.window += bytes.window;
    sum.projections += bytes.projections;
    sum.finished += bytes.finished;
  }
  const auto count = static_cast<std::int64_t>(ranks.size());
  return {.window = sum.window / count, .projections = sum.projections / count, .finished = sum.finished / count};
}

void print_prompt(const PlannedPrompt& prompt, std::int32_t ranks) {
  const PromptExchange& exchange = prompt.exchange;
  TextTable table({"cache on", "comes to", "window rows", "projections", "finished rows", "total bytes", "total",
                   "B/token", "holds of it"});
  const auto add = [&](const char* cache_on, const char* comes_to, const ExchangedBytes& bytes, std::int64_t held) {
    table.add_row({cache_on, comes_to, std::to_string(bytes.window), std::to_string(bytes.projections),
                   std::to_string(bytes.finished), std::to_string(bytes.total()),
                   human_bytes(static_cast<double>(bytes.total())),
                   fixed(static_cast<double>(bytes.total()) / static_cast<double>(prompt.tokens), 0),
                   human_bytes(static_cast<double>(held))});
  };
  const std::span<const ExchangedBytes> one(exchange.one);
  add("every rank", "each, at most", most_of(exchange.every), prompt.cache_bytes);
  add("rank 0", "rank 0", one.front(), prompt.cache_bytes);
  add("rank 0", "others, on average", average_of(one.subspan(1)), 0);
  const std::int64_t outputs = *std::max_element(exchange.outputs.begin(), exchange.outputs.end());
  std::cout << "context parallelism, " << ranks << " ranks: a prompt of " << prompt.tokens
            << " tokens, steps: " << exchange.steps << ", dealt out: " << exchange.dealt_steps << "\n"
            << table.to_string() << "outputs of the others, where they are shared: at most " << bytes_text(outputs)
            << " a rank\n";
}

std::string fit_line(const WholePlan& whole) {
  const CacheLimits& limits = whole.cache.limits;
  const std::string sequences = std::to_string(limits.max_sequences);
  const std::string context = std::to_string(limits.max_context_tokens);
  if (whole.counted) return "sequences that fit: " + sequences + " of " + context + " tokens\n";
  return "tokens that fit: " + std::to_string(limits.pool_tokens) + " in " + sequences + " sequences of at most " +
         context + "\n";
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
            << fit_line(whole) << states_line(plan) << "cache: " << bytes_text(plan.total_bytes) << "\n"
            << "attention weights of " << whole.model.schedule.layers().size() << " layers, " << whole.model.encoding
            << ": " << bytes_text(whole.steps.weight_bytes) << "\n"
            << "steps of at most " << plan.limits.max_step_tokens << " tokens, backend " << flags.backend
            << ": workspace " << bytes_text(whole.steps.workspace_bytes) << ", scratch "
            << bytes_text(whole.steps.scratch_bytes) << ", graphs at most " << bytes_text(whole.steps.graph_bytes)
            << "\n"
            << ranks_line(whole, flags) << "total" << (other_bytes > 0 ? " with other memory: " : ": ")
            << bytes_text(plan.total_bytes + whole.steps.total_bytes() + other_bytes) << "\n";
  if (whole.prompt) print_prompt(*whole.prompt, flags.context_ranks);
  if (plan.limits.boundary_states > 0) print_prefix_costs(whole);
}

Status plan(const PlanCommand& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  std::int64_t other_bytes = 0;
  if (!flags.other.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(other_bytes, parse_byte_size("--other", flags.other));
  }
  Provenance provenance;
  if (flags.config.empty() == flags.checkpoint.empty()) {
    return {StatusCode::kInvalidArgument, "--config and --checkpoint: accepted: one of them"};
  }
  if (!flags.json.empty()) {
    DSV4RT_RETURN_IF_ERROR(flags.checkpoint.empty() ? provenance.add_file(flags.config)
                                                    : provenance.add_checkpoint(flags.checkpoint));
  }
  DSV4RT_ASSIGN_OR_RETURN(const WholePlan plan, make_plan(flags, other_bytes));
  if (flags.json != "-") print_plan(plan, flags, other_bytes);
  if (flags.json.empty()) return {};
  return write_json_report(plan_json(plan, flags, other_bytes), provenance, flags.json, flags.outputs.existing());
}

}  // namespace

void add_plan_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<PlanCommand>();
  CLI::App* command =
      app.add_subcommand("plan", "Plan memory: bytes per role of the cache, what steps take, and what fits");
  auto* config = command->add_option("--config", flags->config, "config.json of the model");
  command->add_option("--checkpoint", flags->checkpoint, "Directory of a checkpoint instead: its weights as stored")
      ->excludes(config);
  command->add_option("--layers", flags->layers, "Layers A-B, or one; default all");
  command
      ->add_option("--weights", flags->weights,
                   "Linears of --config: fp8, bf16 or nvfp4; default by its quantization_config")
      ->needs(config);
  auto* memory = command->add_option("--memory,--device-memory", flags->memory,
                                     "Memory to fill, e.g. 80GiB; without it --pool-tokens decides");
  command->add_option("--other,--beside", flags->other,
                      "Memory that others take of it, e.g. experts and activations of the serving stack: 6GiB");
  auto* context = command
                      ->add_option("--context", flags->context,
                                   "Count how many sequences of so many tokens, e.g. 32Ki, fit into --memory")
                      ->needs(memory);
  command->add_option("--backend", flags->backend, "Whose scratch memory is planned: cpu, or cuda where it is built in")
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "CPU threads, each of which has scratch; 0: all cores")
      ->capture_default_str();
  command->add_option("--max-context", flags->max_context, "Longest sequence in tokens; default the model's maximum")
      ->excludes(context);
  command->add_option("--sequences", flags->sequences, "Live sequences")->capture_default_str()->excludes(context);
  command
      ->add_option("--pool-tokens", flags->pool_tokens,
                   "Tokens all sequences hold together; 0: sequences x max context")
      ->excludes(memory);
  command->add_option("--max-step-tokens", flags->max_step_tokens, "Tokens in one step")->capture_default_str();
  command
      ->add_option("--prefix-states", flags->prefix_states,
                   "Boundary states of a prefix cache; also prints what states at intervals cost and what then fits")
      ->capture_default_str();
  command
      ->add_option("--tp", flags->tensor_ranks,
                   "Plan a rank of so many with tensor parallelism; also prints its weights")
      ->capture_default_str();
  command
      ->add_option("--cp", flags->context_ranks,
                   "Plan a rank of so many with context parallelism; also prints what comes to it of a prompt")
      ->capture_default_str();
  command->add_option("--prompt", flags->prompt,
                      "With --cp: tokens of that prompt, e.g. 64Ki, in steps of --max-step-tokens; default one step");
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
