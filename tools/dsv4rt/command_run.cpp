// dsv4rt run: feeds an attention trace through a checkpoint's layers and compares.

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include <spdlog/spdlog.h>

#include "base/message_text.h"
#include "base/try.h"
#include "command.h"
#include "console.h"
#include "engine_flags.h"
#include "outputs.h"
#include "prefix_report.h"
#include "ranks.h"
#include "stage_report.h"
#include "stop_on_interrupt.h"
#include "text_table.h"
#include "tools/lib/attention_trace.h"
#include "tools/lib/trace_check.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt::cli {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags {
  EngineFlags engine;
  Ranks ranks;
  std::string trace;
  std::int64_t chunk = 0;
  std::int64_t decode_from = -1;
  std::optional<double> tolerance;
  bool check = false;
  bool digest = false;
  StageReport stages;
  PrefixReport prefixes;
  bool progress = false;
  std::string json;
  std::string metrics;
  Outputs outputs;
};

// "run: 128 of 512 tokens, layer 3 of 43".
class RunProgress {
 public:
  explicit RunProgress(bool everything)
      : line_("run", "tokens", everything ? ProgressLine::Elsewhere::kEverything : ProgressLine::Elsewhere::kTenths) {}

  void tokens(std::int64_t done, std::int64_t total) {
    tokens_ = done;
    line_.update(done, total);
  }
  // Ends at Ctrl-C, and tells of the layers of the step at hand. The object outlives it.
  WorkWatch watch(std::int64_t all_tokens) {
    return WorkWatch(StopOnInterrupt::interrupted, [this, all_tokens](std::int64_t layer, std::int64_t layers) {
      line_.update(tokens_, all_tokens, ", layer " + std::to_string(layer) + " of " + std::to_string(layers));
    });
  }

 private:
  ProgressLine line_;
  std::int64_t tokens_ = 0;
};

struct LayerDigest {
  std::string output;
  std::string cache;
};

// SHA-256 of outputs and of everything the sequence's cache holds, per layer.
Result<std::vector<LayerDigest>> digest_layers(Engine& engine, const TraceRun& run) {
  EngineInspector inspector(engine);
  std::vector<LayerDigest> digests;
  for (const LayerRun& layer : run.layers) {
    Sha256 output;
    output.update(std::as_bytes(std::span(layer.output)));
    Sha256 cache;
    DSV4RT_RETURN_IF_ERROR(inspector.digest_cache(layer.layer, run.sequence, cache));
    digests.push_back({output.hex(), cache.hex()});
  }
  return digests;
}

std::string rows_text(const std::optional<RowComparison>& rows) {
  if (!rows) return "-";
  return std::to_string(rows->off_by_one_code + rows->further_off) + "/" + std::to_string(rows->values);
}

void print_table(Engine& engine, const TraceRun& run, const std::vector<LayerCheck>& checks) {
  EngineInspector inspector(engine);
  TextTable table({"layer", "kind", "prefill ms", "decode ms/token", "rel error", "cosine", "kv diff", "key diff",
                   "window diff", "topk diff", "result"});
  for (std::size_t i = 0; i < run.layers.size(); ++i) {
    const LayerRun& layer = run.layers[i];
    std::vector<std::string> cells{
        std::to_string(layer.layer.value), std::string(attention_kind_name(inspector.layer_spec(layer.layer).kind)),
        fixed(layer.prefill_ms, 1),
        run.decode_tokens == 0 ? "-" : fixed(layer.decode_ms / static_cast<double>(run.decode_tokens), 3)};
    if (checks.empty()) {
      cells.insert(cells.end(), {"-", "-", "-", "-", "-", "-", "not checked"});
    } else {
      const LayerCheck& check = checks[i];
      cells.push_back(check.output_compared ? fixed(check.relative_error, 6) : "-");
      cells.push_back(check.output_compared ? fixed(check.cosine, 6) : "-");
      cells.push_back(rows_text(check.compressed_kv));
      cells.push_back(rows_text(check.index_k));
      cells.push_back(rows_text(check.window_kv));
      cells.push_back(check.selection_compared ? std::to_string(check.selection_differs) : "-");
      cells.push_back(check.failures.empty() ? "ok" : "MISMATCH");
    }
    table.add_row(std::move(cells));
  }
  std::cout << table.to_string();
}

Json rows_json(const std::optional<RowComparison>& rows) {
  if (!rows) return nullptr;
  return {{"values", rows->values}, {"off_by_one_code", rows->off_by_one_code}, {"further_off", rows->further_off}};
}

Json check_json(const LayerCheck& check) {
  Json json;
  json["ok"] = check.failures.empty();
  if (check.output_compared) {
    json["relative_error"] = check.relative_error;
    json["cosine"] = check.cosine;
    json["compared_tokens"] = check.compared_tokens;
  }
  json["compressed_kv"] = rows_json(check.compressed_kv);
  json["index_k"] = rows_json(check.index_k);
  json["window_kv_last"] = rows_json(check.window_kv);
  if (check.selection_compared) {
    json["selection_differs_tokens"] = check.selection_differs;
    json["selection_unexplained_tokens"] = check.selection_unexplained;
  }
  json["failures"] = check.failures;
  json["not_compared"] = check.not_compared;
  return json;
}

Json report_json(Engine& engine, const TraceRun& run, const std::vector<LayerCheck>& checks,
                 const std::vector<LayerDigest>& digests) {
  EngineInspector inspector(engine);
  Json report;
  report["prefill_tokens"] = run.prefill_tokens;
  report["decode_tokens"] = run.decode_tokens;
  report["steps"] = run.steps;
  report["stopped"] = run.stopped;
  report["row_format"] = row_format_name(inspector.row_format());
  report["index_format"] = index_key_format_name(inspector.index_format());
  report["deterministic"] = inspector.deterministic();
  report["linear_precision"] = linear_precision_name(inspector.linear_precision());
  report["memory_bytes"] = engine.memory().total_bytes;
  report["memory_parts"] = {
      {"weights", engine.memory().weight_bytes},      {"cache", engine.memory().cache.total_bytes},
      {"workspace", engine.memory().workspace_bytes}, {"scratch", engine.memory().scratch_bytes},
      {"exchange", engine.memory().exchange_bytes},   {"graphs", engine.memory().graph_bytes}};
  for (std::size_t i = 0; i < run.layers.size(); ++i) {
    const LayerRun& layer = run.layers[i];
    Json json;
    json["layer"] = layer.layer.value;
    json["kind"] = attention_kind_name(inspector.layer_spec(layer.layer).kind);
    json["prefill_ms"] = layer.prefill_ms;
    json["decode_ms"] = layer.decode_ms;
    json["tokens"] = layer.tokens;
    if (!checks.empty()) json["check"] = check_json(checks[i]);
    if (!digests.empty()) json["sha256"] = {{"output", digests[i].output}, {"cache", digests[i].cache}};
    report["layers"].push_back(std::move(json));
  }
  return report;
}

Status report_mismatches(const std::vector<LayerCheck>& checks) {
  std::size_t mismatches = 0;
  for (const LayerCheck& check : checks) {
    for (const std::string& reason : check.not_compared)
      spdlog::warn("layer {}: not compared: {}", check.layer.value, reason);
    for (const std::string& reason : check.failures) spdlog::error("layer {}: {}", check.layer.value, reason);
    mismatches += check.failures.empty() ? 0 : 1;
  }
  if (mismatches == 0) return {};
  return {StatusCode::kMismatch, std::to_string(mismatches) + " of " + std::to_string(checks.size()) +
                                     " layers differ from the recorded trace"};
}

// The engine is sized for exactly this trace.
Result<EngineOptions> engine_options(const RunFlags& flags, const AttentionTrace& trace) {
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
  const std::int64_t prompt = flags.decode_from < 0 ? trace.prefill_tokens : flags.decode_from;
  const std::int64_t chunk = flags.chunk > 0 ? std::min(flags.chunk, prompt) : prompt;
  options.limits = {.max_sequences = 1,
                    .max_context_tokens = trace.tokens(),
                    .max_step_tokens = static_cast<std::int32_t>(std::max<std::int64_t>(1, chunk)),
                    .pool_tokens = 0};
  return options;
}

Result<AttentionTrace> open_trace(const RunFlags& flags) {
  DSV4RT_ASSIGN_OR_RETURN(const ModelConfig config,
                          ModelConfig::from_file(std::filesystem::path(flags.engine.checkpoint) / "config.json"));
  LayerRange range{0, static_cast<std::int32_t>(config.num_hidden_layers - 1)};
  if (!flags.engine.layers.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(range, parse_layer_range("--layers", flags.engine.layers));
    if (range.last >= config.num_hidden_layers) {
      return Status{StatusCode::kInvalidArgument, "--layers: '" + printable(flags.engine.layers) +
                                                      "'; the model has layers 0 to " +
                                                      std::to_string(config.num_hidden_layers - 1)};
    }
  }
  return AttentionTrace::open(flags.trace, config, LayerId(range.first), LayerId(range.last));
}

// What was asked for and cannot be said of a run that was stopped.
Status report_unmade(const RunFlags& flags, const TraceRun& run, const AttentionTrace& trace) {
  std::string unmade;
  for (const auto& [asked, flag] :
       {std::pair(run.stopped && flags.check, "--check"), std::pair(run.stopped && flags.digest, "--digest"),
        std::pair(flags.prefixes.wanted(), "--prefix-cache")}) {
    if (asked) unmade += (unmade.empty() ? "" : ", ") + std::string(flag);
  }
  const std::string text = "stopped after " + std::to_string(run.prefill_tokens + run.decode_tokens) + " of " +
                           std::to_string(trace.tokens()) + " tokens";
  if (!unmade.empty()) return {StatusCode::kFailedPrecondition, text + ", before " + unmade + " could be done"};
  spdlog::warn("{}", text);
  return {};
}

Status run(RunFlags& flags) {
  DSV4RT_RETURN_IF_ERROR(flags.outputs.check());
  if (flags.tolerance && !(*flags.tolerance > 0 && std::isfinite(*flags.tolerance))) {
    return {StatusCode::kInvalidArgument,
            "--tolerance: " + std::to_string(*flags.tolerance) + "; accepted: a finite number above 0"};
  }
  if (flags.chunk < 0) {
    return {StatusCode::kInvalidArgument, "--chunk: " + std::to_string(flags.chunk) + "; accepted: 0 or more tokens"};
  }
  DSV4RT_RETURN_IF_ERROR(flags.ranks.join(flags.engine.backend));
  DSV4RT_ASSIGN_OR_RETURN(const AttentionTrace trace, open_trace(flags));
  if (flags.decode_from > trace.tokens()) {
    return {StatusCode::kInvalidArgument, "--decode-from: " + std::to_string(flags.decode_from) +
                                              "; accepted: at most the trace's " + std::to_string(trace.tokens()) +
                                              " tokens"};
  }
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, engine_options(flags, trace));
  flags.ranks.apply(options);
  DSV4RT_RETURN_IF_ERROR(flags.prefixes.prepare(trace, options));
  Provenance provenance;
  if (!flags.json.empty()) {
    DSV4RT_RETURN_IF_ERROR(provenance.add_checkpoint(flags.engine.checkpoint));
    DSV4RT_RETURN_IF_ERROR(provenance.add_file(flags.trace));
  }
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  const auto human = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  const EngineMemory& memory = engine->memory();
  spdlog::info("{} layers, {} planned ({} weights, {} cache, {} workspace, {} scratch, {} exchange, {} graphs)",
               engine->layers().size(), human(memory.total_bytes), human(memory.weight_bytes),
               human(memory.cache.total_bytes), human(memory.workspace_bytes), human(memory.scratch_bytes),
               human(memory.exchange_bytes), human(memory.graph_bytes));

  std::unique_ptr<StageTimer> stage_timer;
  if (flags.ranks.speaks()) {
    DSV4RT_ASSIGN_OR_RETURN(stage_timer, flags.stages.start(*engine));
  }
  provenance.set_device(options);
  // After loading, which ends at once. Ranks would stop at different layers and lose each other: theirs end at once.
  std::optional<StopOnInterrupt> interrupts;
  if (!flags.ranks.several()) interrupts.emplace();
  RunProgress progress(flags.progress);
  WorkWatch watch = progress.watch(trace.tokens());
  TraceRunOptions steps{
      .chunk_tokens = flags.chunk, .decode_from = flags.decode_from, .token_ids = flags.prefixes.token_ids()};
  if (!flags.ranks.several()) steps.watch = &watch;
  DSV4RT_ASSIGN_OR_RETURN(const TraceRun run,
                          run_trace(*engine, trace, steps, [&](std::int64_t done, std::int64_t total) {
                            if (flags.ranks.speaks()) progress.tokens(done, total);
                          }));
  std::vector<LayerCheck> checks;
  if (flags.check && !run.stopped) {
    TraceTolerance tolerance = default_tolerance(*engine);
    tolerance.output_relative_error = flags.tolerance.value_or(tolerance.output_relative_error);
    DSV4RT_ASSIGN_OR_RETURN(checks, check_trace(*engine, trace, run, tolerance));
  }
  std::vector<LayerDigest> digests;
  if (flags.digest && !run.stopped) {
    DSV4RT_ASSIGN_OR_RETURN(digests, digest_layers(*engine, run));
    std::string all;
    for (const LayerDigest& digest : digests) all += digest.output + digest.cache;
    DSV4RT_RETURN_IF_ERROR(flags.ranks.check_same("outputs or caches", all));
  }

  if (flags.json != "-") {
    print_table(*engine, run, checks);
    for (std::size_t i = 0; i < digests.size(); ++i) {
      std::cout << "layer " << run.layers[i].layer.value << " output sha256:" << digests[i].output
                << " cache sha256:" << digests[i].cache << "\n";
    }
  }
  Json report = report_json(*engine, run, checks, digests);
  DSV4RT_RETURN_IF_ERROR(flags.stages.finish(stage_timer.get(), report, flags.json != "-"));
  const Status compared =
      run.stopped ? Status{} : flags.prefixes.replay(*engine, trace, steps, run, report, flags.json == "-");
  report["stopped"] = watch.stopped();
  if (!flags.json.empty() && flags.ranks.speaks()) {
    DSV4RT_RETURN_IF_ERROR(write_json_report(report, provenance, flags.json, flags.outputs.existing()));
  }
  if (!flags.metrics.empty() && flags.ranks.speaks()) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string metrics, engine->metrics());
    DSV4RT_RETURN_IF_ERROR(write_text_file(flags.metrics, metrics, flags.outputs.existing()));
  }
  if (watch.stopped()) {
    DSV4RT_RETURN_IF_ERROR(report_mismatches(checks));
    DSV4RT_RETURN_IF_ERROR(flags.prefixes.result());
    return report_unmade(flags, run, trace);
  }
  DSV4RT_RETURN_IF_ERROR(compared);
  DSV4RT_RETURN_IF_ERROR(report_mismatches(checks));
  return flags.prefixes.result();
}

}  // namespace

void add_run_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Feed an attention trace through the layers and compare");
  flags->engine.add_to(*command);
  flags->ranks.add_to(*command);
  command->add_option("--trace", flags->trace, "Attention trace (safetensors)")->required();
  command->add_option("--chunk", flags->chunk, "Prefill tokens per step; 0: the whole prompt")->capture_default_str();
  command->add_option("--decode-from", flags->decode_from,
                      "First token fed one by one; default: the trace's n_prefill");
  command->add_flag("--check", flags->check,
                    "Compare with the recorded outputs, rows and selections; exit 4 on mismatch");
  command->add_option("--tolerance", flags->tolerance,
                      "Allowed relative error of outputs; default 0.004 for BF16 linears, 0.01 for quantized ones");
  flags->stages.add_to(*command);
  flags->prefixes.add_to(*command);
  command->add_flag("--digest", flags->digest, "Print SHA-256 of outputs and cache contents per layer");
  command->add_flag("--progress", flags->progress, "Say after every layer how far it is, also where stderr is a file");
  command->add_option("--json", flags->json,
                      "Write the report as JSON to a file, or - for stdout instead of the table");
  command->add_option("--metrics", flags->metrics, "Write the engine's metrics as Prometheus text to a file");
  flags->outputs.add_to(*command, {"--json", "--chrome-trace", "--metrics"});
  command->callback([flags, &chosen] { chosen = [flags] { return run(*flags); }; });
}

}  // namespace dsv4rt::cli
