// dsv4rt bench: times the layers of a checkpoint, or whole decode steps, and checks the result in the same run.

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include <spdlog/spdlog.h>

#include "base/try.h"
#include "bench_devices.h"
#include "bench_shapes.h"
#include "command.h"
#include "console.h"
#include "engine_flags.h"
#include "outputs.h"
#include "ranks.h"
#include "stage_report.h"
#include "step_table_report.h"
#include "stop_on_interrupt.h"
#include "text_table.h"
#include "tools/lib/device_engines.h"
#include "tools/lib/engine_inspector.h"
#include "tools/lib/engines_bench.h"
#include "tools/lib/exchange_bench.h"
#include "tools/lib/layer_bench.h"
#include "tools/lib/prefill_bench.h"
#include "tools/lib/step_bench.h"

namespace dsv4rt::cli {
namespace {

struct BenchFlags {
  EngineFlags engine;
  Ranks ranks;
  LayerBenchOptions bench;
  std::vector<std::string> whole_step;
  std::vector<std::string> whole_prefill;
  std::optional<std::int32_t> hand_over_to;
  std::vector<std::int32_t> devices;
  double bandwidth_gb_per_s = 0;
  std::string step_table;
  std::string revision;
  StageReport stages;
  Provenance provenance;
  bool progress = false;
  std::string json;
  Outputs outputs;
};

// Read bandwidth that floors are computed from: measured on an H200. The CPU's varies; it has to be given.
double floor_bandwidth(const BenchFlags& flags) {
  if (flags.bandwidth_gb_per_s > 0) return flags.bandwidth_gb_per_s;
  return flags.engine.backend == "cuda" ? 4300.0 : 0.0;
}

Result<std::unique_ptr<StageTimer>> start_stages(const BenchFlags& flags, Engine& engine) {
  return flags.ranks.speaks() ? flags.stages.start(engine) : std::unique_ptr<StageTimer>();
}

// Work that Ctrl-C ends with the results so far, and that says how far it is on a terminal. Begun when the engine is
// loaded: until then Ctrl-C ends the program. Ranks would stop at different layers and lose each other: theirs ends at
// once too.
class BenchWatch {
 public:
  BenchWatch(const BenchFlags& flags, const char* unit)
      : line_("bench", unit, flags.progress ? ProgressLine::Elsewhere::kEverything : ProgressLine::Elsewhere::kNothing),
        watch_(StopOnInterrupt::interrupted, [this](std::int64_t done, std::int64_t total) { update(done, total); }),
        speaks_(flags.ranks.speaks()),
        several_(flags.ranks.several()) {
    if (!several_) interrupts_.emplace();
  }

  void update(std::int64_t done, std::int64_t total) {
    if (speaks_) line_.update(done, total);
  }
  [[nodiscard]] WorkWatch* get() { return several_ ? nullptr : &watch_; }
  [[nodiscard]] bool stopped() const { return watch_.stopped(); }

 private:
  ProgressLine line_;
  std::optional<StopOnInterrupt> interrupts_;
  WorkWatch watch_;
  bool speaks_;
  bool several_;
};

// The end of every bench but that of a table: what was checked, or that it was stopped, the stages and the report.
Status finish_report(nlohmann::ordered_json& report, const BenchFlags& flags, const BenchWatch& watch,
                     StageTimer* stage_timer, const std::string& checked) {
  report["stopped"] = watch.stopped();
  if (flags.json != "-" && !watch.stopped()) std::cout << checked;
  if (watch.stopped()) spdlog::warn("stopped: the results are those so far, and not all of them were checked");
  DSV4RT_RETURN_IF_ERROR(flags.stages.finish(stage_timer, report, flags.json != "-"));
  if (flags.json.empty() || !flags.ranks.speaks()) return {};
  return write_json_report(report, flags.provenance, flags.json, flags.outputs.existing());
}

// How the outputs compared in a check are the same.
const char* closeness(const EngineInspector& inspector) {
  return inspector.deterministic() ? ", byte for byte" : ", within half their norm";
}

// Graph nodes of a layer by attention kind: the most of any layer. Empty where nothing was captured.
std::map<std::string, std::int64_t> most_nodes_by_kind(const EngineInspector& inspector,
                                                       std::span<const LayerId> layers,
                                                       std::span<const std::int64_t> layer_nodes) {
  std::map<std::string, std::int64_t> most;
  for (std::size_t i = 0; i < layer_nodes.size(); ++i) {
    std::int64_t& nodes = most[std::string(attention_kind_name(inspector.layer_spec(layers[i]).kind))];
    nodes = std::max(nodes, layer_nodes[i]);
  }
  return most;
}

// "csa 7, hca 6".
std::string nodes_text(const std::map<std::string, std::int64_t>& nodes_by_kind) {
  std::string text;
  for (const auto& [kind, nodes] : nodes_by_kind) {
    text.append(text.empty() ? "" : ", ").append(kind).append(" ").append(std::to_string(nodes));
  }
  return text.empty() ? "-" : text;
}

// What the sums of ranks take of a step of `batch` tokens: added to its report and, as a line, to `text`.
Status add_exchange(const BenchFlags& flags, Engine& engine, std::int32_t batch, double step_ms,
                    nlohmann::ordered_json& step, std::string& text) {
  if (flags.ranks.tensor() == nullptr) return {};
  DSV4RT_ASSIGN_OR_RETURN(const double us,
                          time_exchange_us(engine, *flags.ranks.tensor(), batch, flags.bench.decode_steps));
  const double share = us * static_cast<double>(engine.layers().size()) / 1e3 / step_ms;
  step["exchange_us"] = us;
  step["exchange_share"] = share;
  text += std::to_string(flags.ranks.tensor()->size()) + " ranks, batch " + std::to_string(batch) +
          ": a sum of their outputs takes " + fixed(us, 1) + " us, those of all layers " + fixed(share * 100, 1) +
          " % of a step\n";
  return {};
}

Status bench_whole_step(const BenchFlags& flags) {
  const StepBenchOptions bench{.steps = flags.bench.decode_steps, .seed = flags.bench.seed};
  DSV4RT_ASSIGN_OR_RETURN(std::vector<StepShape> shapes, parse_step_shapes(flags.whole_step));
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
  DSV4RT_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(options.checkpoint / "config.json"));
  leave_room_for_steps(shapes, bench, config.max_position_embeddings);
  flags.ranks.apply(options);
  options.limits = step_bench_limits(shapes, bench);
  options.draft_budget_tokens = 1;
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<StageTimer> stage_timer, start_stages(flags, *engine));

  const auto layers = static_cast<std::int64_t>(engine->layers().size());
  const double bandwidth = floor_bandwidth(flags);
  TextTable table({"batch", "context", "layers", "captured ms", "eager ms", "host us", "floor ms", "ratio", "nodes",
                   "nodes of a layer", "read"});
  nlohmann::ordered_json report;
  report["deterministic"] = EngineInspector(*engine).deterministic();
  report["linear_precision"] = linear_precision_name(EngineInspector(*engine).linear_precision());
  report["steps"] = nlohmann::ordered_json::array();
  std::string exchanges;
  BenchWatch watch(flags, "shapes");
  for (const StepShape& shape : shapes) {
    const Result<StepBenchResult> measured = bench_steps(*engine, shape, bench, watch.get());
    if (watch.stopped()) break;
    DSV4RT_ASSIGN_OR_RETURN(const StepBenchResult result, measured);
    const bool captured = result.captured_ms > 0;
    const auto bytes = static_cast<double>(result.weight_bytes + result.cache_bytes);
    const double floor_ms = bandwidth > 0 ? bytes / bandwidth / 1e6 : 0;
    const auto nodes_by_kind = most_nodes_by_kind(EngineInspector(*engine), engine->layers(), result.layer_nodes);
    const double best_ms = captured ? result.captured_ms : result.eager_ms;
    table.add_row({std::to_string(shape.batch), context_text(shape), std::to_string(layers),
                   captured ? fixed(result.captured_ms, 3) : "-", fixed(result.eager_ms, 3),
                   captured ? fixed(result.host_us, 1) : "-", floor_ms > 0 ? fixed(floor_ms, 3) : "-",
                   floor_ms > 0 ? fixed(best_ms / floor_ms, 2) : "-", std::to_string(result.nodes),
                   nodes_text(nodes_by_kind), human_bytes(bytes)});
    report["steps"].push_back({{"batch", shape.batch},
                               {"context", shape.context_tokens},
                               {"layers", layers},
                               {"captured_ms", result.captured_ms},
                               {"eager_ms", result.eager_ms},
                               {"host_us", result.host_us},
                               {"graph_nodes", result.nodes},
                               {"layer_nodes", nodes_by_kind},
                               {"weight_bytes", result.weight_bytes},
                               {"cache_bytes", result.cache_bytes},
                               {"floor_ms", floor_ms}});
    if (shape.shortest_tokens > 0) report["steps"].back()["shortest_context"] = shape.shortest_tokens;
    DSV4RT_RETURN_IF_ERROR(add_exchange(flags, *engine, shape.batch, best_ms, report["steps"].back(), exchanges));
    watch.update(static_cast<std::int64_t>(report["steps"].size()), static_cast<std::int64_t>(shapes.size()));
  }
  if (flags.json != "-") std::cout << table.to_string() << exchanges;
  std::string checked;
  if (options.backend == "cuda") {
    checked = std::string("check: a captured step gives the outputs of an eager one") +
              closeness(EngineInspector(*engine)) + "\n";
  }
  return finish_report(report, flags, watch, stage_timer.get(), checked);
}

Status bench_each_layer(const BenchFlags& flags) {
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
  flags.ranks.apply(options);
  options.limits = bench_limits(flags.bench);
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<StageTimer> stage_timer, start_stages(flags, *engine));
  BenchWatch watch(flags, "layer runs");
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<LayerBenchResult> results, bench_layers(*engine, flags.bench, watch.get()));

  EngineInspector inspector(*engine);
  TextTable table({"layer", "kind", "weights", "prefill ms", "prefill tokens/s", "decode ms/step", "weight GB/s"});
  nlohmann::ordered_json report;
  report["prefill_tokens"] = flags.bench.prefill_tokens;
  report["decode_context"] = flags.bench.context_tokens;
  report["batch"] = flags.bench.batch;
  report["deterministic"] = inspector.deterministic();
  report["linear_precision"] = linear_precision_name(inspector.linear_precision());
  for (const LayerBenchResult& result : results) {
    const std::string kind(attention_kind_name(inspector.layer_spec(result.layer).kind));
    const auto weight_bytes = static_cast<double>(inspector.layer_weight_bytes(result.layer));
    // A bench that was stopped has not timed everything.
    const double tokens_per_s = static_cast<double>(flags.bench.prefill_tokens) / result.prefill_ms * 1e3;
    const double weight_gb_per_s = weight_bytes / result.decode_ms / 1e6;
    const auto text = [](double ms, double value, int digits) { return ms > 0 ? fixed(value, digits) : "-"; };
    const auto number = [](double ms, double value) {
      return ms > 0 ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
    };
    table.add_row({std::to_string(result.layer.value), kind, human_bytes(weight_bytes),
                   text(result.prefill_ms, result.prefill_ms, 1), text(result.prefill_ms, tokens_per_s, 0),
                   text(result.decode_ms, result.decode_ms, 3), text(result.decode_ms, weight_gb_per_s, 1)});
    report["layers"].push_back({{"layer", result.layer.value},
                                {"kind", kind},
                                {"weight_bytes", static_cast<std::int64_t>(weight_bytes)},
                                {"prefill_ms", number(result.prefill_ms, result.prefill_ms)},
                                {"decode_ms", number(result.decode_ms, result.decode_ms)},
                                {"weight_gb_per_s", number(result.decode_ms, weight_gb_per_s)}});
  }
  if (flags.json != "-") std::cout << table.to_string();
  return finish_report(
      report, flags, watch, stage_timer.get(),
      std::string("check: last decoded token equals the prefilled one in every layer") + closeness(inspector) + "\n");
}

// Prefill of whole prompts; the floor is that of an H200's tensor cores, measured 1480 and 800 TFLOP/s, of every rank
// that shares the rows of a prompt.
Status bench_whole_prefill(const BenchFlags& flags) {
  constexpr double kFp8FlopsPerMs = 1480e9;
  constexpr double kBf16FlopsPerMs = 800e9;
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<PrefillShape> shapes, parse_prefill_shapes(flags.whole_prefill));
  std::int32_t longest = 0;
  for (const PrefillShape& shape : shapes) {
    longest = std::max(longest, shape.tokens);
    if (shape.context_tokens > 0) {
      return {StatusCode::kInvalidArgument, "--whole-prefill TOKENS@CONTEXT: accepted with --step-table"};
    }
  }
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
  flags.ranks.apply(options);
  options.limits = {.max_sequences = 1, .max_context_tokens = longest, .max_step_tokens = longest, .pool_tokens = 0};
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<StageTimer> stage_timer, start_stages(flags, *engine));
  TextTable table({"tokens", "layers", "prefill ms", "tokens/s", "TFLOP", "floor ms", "ratio", "halves differ"});
  nlohmann::ordered_json report;
  report["prefills"] = nlohmann::ordered_json::array();
  BenchWatch watch(flags, "prompts");
  for (const auto& [tokens, context] : shapes) {
    const Result<PrefillBenchResult> measured =
        bench_prefill(*engine, tokens, flags.bench.prefill_repeats, flags.bench.seed, watch.get(), flags.hand_over_to);
    if (watch.stopped()) break;
    DSV4RT_ASSIGN_OR_RETURN(const PrefillBenchResult result, measured);
    const double bf16_flops = result.linear_bf16_flops + result.attention_flops;
    const bool shared = options.parallel.context != nullptr && tokens >= options.parallel.context_min_tokens;
    const int sharing_ranks = shared ? options.parallel.context->size() : 1;
    const double floor_ms =
        options.backend == "cuda"
            ? (result.linear_fp8_flops / kFp8FlopsPerMs + bf16_flops / kBf16FlopsPerMs) / sharing_ranks
            : 0;
    table.add_row({std::to_string(tokens), std::to_string(engine->layers().size()), fixed(result.prefill_ms, 2),
                   fixed(tokens / result.prefill_ms * 1e3, 0), fixed((result.linear_fp8_flops + bf16_flops) / 1e12, 1),
                   floor_ms > 0 ? fixed(floor_ms, 2) : "-", floor_ms > 0 ? fixed(result.prefill_ms / floor_ms, 2) : "-",
                   fixed(result.halves_distance, 5)});
    report["prefills"].push_back({{"tokens", tokens},
                                  {"layers", engine->layers().size()},
                                  {"prefill_ms", result.prefill_ms},
                                  {"held_by", result.held_by},
                                  {"linear_fp8_flops", result.linear_fp8_flops},
                                  {"linear_bf16_flops", result.linear_bf16_flops},
                                  {"attention_flops", result.attention_flops},
                                  {"halves_distance", result.halves_distance},
                                  {"floor_ms", floor_ms}});
    watch.update(static_cast<std::int64_t>(report["prefills"].size()), static_cast<std::int64_t>(shapes.size()));
  }
  const EngineInspector inspector(*engine);
  report["deterministic"] = inspector.deterministic();
  report["linear_precision"] = linear_precision_name(inspector.linear_precision());
  if (flags.json != "-") std::cout << table.to_string();
  return finish_report(
      report, flags, watch, stage_timer.get(),
      std::string("check: a prompt in two halves gives the same outputs") + closeness(inspector) + "\n");
}

// Independent engines; without --whole-step, the shape of --batch and --context.
Status bench_independent_engines(const BenchFlags& flags) {
  if (flags.ranks.several() || !flags.step_table.empty() || !flags.whole_prefill.empty() || flags.stages.wanted()) {
    return {StatusCode::kInvalidArgument,
            "--devices: accepted without --tp, --cp, --step-table, --whole-prefill and --stages: independent engines, "
            "decode steps"};
  }
  std::vector<StepShape> shapes{{flags.bench.batch, flags.bench.context_tokens}};
  if (!flags.whole_step.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(shapes, parse_step_shapes(flags.whole_step));
  }
  for (const StepShape& shape : shapes) DSV4RT_RETURN_IF_ERROR(check_step_shape(shape));
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
  DSV4RT_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::from_file(options.checkpoint / "config.json"));
  const StepBenchOptions bench{.steps = flags.bench.decode_steps, .seed = flags.bench.seed};
  leave_room_for_steps(shapes, bench, config.max_position_embeddings);
  options.limits = engines_bench_limits(shapes);
  options.draft_budget_tokens = 1;
  DSV4RT_ASSIGN_OR_RETURN(const auto engines, create_device_engines(options, flags.devices));
  BenchWatch watch(flags, "shapes");
  DSV4RT_ASSIGN_OR_RETURN(const DevicesBench measured,
                          bench_devices(engines, flags.devices, shapes, bench, watch.get()));
  const EngineInspector inspector(*engines.front());
  nlohmann::ordered_json report;
  report["deterministic"] = inspector.deterministic();
  report["linear_precision"] = linear_precision_name(inspector.linear_precision());
  report["steps"] = measured.steps;
  if (flags.json != "-") std::cout << measured.table.to_string();
  return finish_report(report, flags, watch, nullptr,
                       "check: all engines give the same outputs, alone and together, byte for byte\n");
}

Status bench_step_table(const BenchFlags& flags) {
  DSV4RT_ASSIGN_OR_RETURN(const EngineOptions options, flags.engine.to_options());
  StepTableGrid grid = StepTableGrid::for_gpu();
  if (!flags.whole_step.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(grid.decode, parse_step_shapes(flags.whole_step));
  }
  if (!flags.whole_prefill.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(grid.prefill, parse_prefill_shapes(flags.whole_prefill));
  }
  DSV4RT_RETURN_IF_ERROR(check_step_table_grid(grid));
  grid.steps = {.steps = flags.bench.decode_steps, .seed = flags.bench.seed};
  grid.prefill_repeats = flags.bench.prefill_repeats;
  return write_step_table(options, grid, flags.revision, flags.step_table);
}

Status bench(BenchFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  DSV4RT_RETURN_IF_ERROR(flags.ranks.join(flags.engine.backend));
  if (!flags.step_table.empty() && flags.ranks.several()) {
    return {StatusCode::kInvalidArgument, "--step-table: accepted without --tp: the table is of one device"};
  }
  if (!flags.step_table.empty() && flags.devices.empty()) return bench_step_table(flags);
  if (!flags.whole_step.empty() && !flags.whole_prefill.empty()) {
    return {StatusCode::kInvalidArgument, "--whole-step and --whole-prefill: accepted: one of them, or --step-table"};
  }
  if (!flags.json.empty()) {
    DSV4RT_RETURN_IF_ERROR(flags.provenance.add_checkpoint(flags.engine.checkpoint));
    DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
    if (!flags.devices.empty()) options.device = flags.devices.front();
    flags.provenance.set_device(options);
  }
  if (!flags.devices.empty()) return bench_independent_engines(flags);
  if (!flags.whole_prefill.empty()) return bench_whole_prefill(flags);
  if (!flags.whole_step.empty()) return bench_whole_step(flags);
  return bench_each_layer(flags);
}

}  // namespace

void add_bench_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Time prefill and decode of every layer on random input");
  flags->engine.add_to(*command);
  flags->ranks.add_to(*command);
  command->add_option("--prefill", flags->bench.prefill_tokens, "Tokens of one prefill step")->capture_default_str();
  command->add_option("--repeats", flags->bench.prefill_repeats, "Prefill repetitions; the median counts")
      ->capture_default_str();
  command->add_option("--context", flags->bench.context_tokens, "Cached tokens when decoding starts")
      ->capture_default_str();
  command->add_option("--decode-steps", flags->bench.decode_steps, "Decode steps; the median counts")
      ->capture_default_str();
  command->add_option("--batch", flags->bench.batch, "Sequences decoded together")->capture_default_str();
  command
      ->add_option("--whole-step", flags->whole_step,
                   "Time decode steps of all layers instead: SEQUENCESxTOKENS[,...], on random caches of so many "
                   "tokens each; SEQUENCESxSHORTEST..LONGEST: of lengths between these")
      ->delimiter(',');
  auto* whole_prefill =
      command
          ->add_option("--whole-prefill", flags->whole_prefill,
                       "Time the prefill of prompts of TOKENS[,...] by all layers instead, each in one step; with "
                       "--step-table also TOKENS@CONTEXT: after so many cached tokens")
          ->delimiter(',');
  command
      ->add_option("--hand-over-to", flags->hand_over_to,
                   "With --whole-prefill and --cp: the rank that alone has the prompts afterwards; default every rank")
      ->needs(whole_prefill);
  command
      ->add_option(
          "--devices", flags->devices,
          "Time independent engines instead, one on each of these devices in one process, a thread each: decode "
          "steps of --whole-step, or --batch and --context, alone and at the same time. Backend cpu: 0 for "
          "each engine; they share its threads and weights")
      ->delimiter(',');
  command->add_option("--step-table", flags->step_table,
                      "Time both over a grid and write a table of step times for replay --execute model; the shapes of "
                      "--whole-step and --whole-prefill where given, otherwise a grid for GPUs");
  command->add_option("--revision", flags->revision, "Name of the build that --step-table notes; default its commit");
  command->add_option("--bandwidth", flags->bandwidth_gb_per_s,
                      "Memory bandwidth in GB/s for the floor of --whole-step; default 4300 with cuda");
  command->add_option("--seed", flags->bench.seed, "Seed of the random input")->capture_default_str();
  command->add_flag("--progress", flags->progress, "Say on stderr how far it is, also where that is no terminal");
  command->add_option("--json", flags->json,
                      "Write the report as JSON to a file, or - for stdout instead of the table");
  flags->stages.add_to(*command);
  flags->outputs.add_to(*command, {"--json", "--step-table", "--chrome-trace"});
  command->callback([flags, &chosen] { chosen = [flags] { return bench(*flags); }; });
}

}  // namespace dsv4rt::cli
