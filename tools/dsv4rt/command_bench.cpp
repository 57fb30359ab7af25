// dsv4rt bench: times the layers of a checkpoint and checks the result in the same run.

#include <iostream>
#include <memory>

#include "base/try.h"
#include "command.h"
#include "console.h"
#include "engine_flags.h"
#include "runtime/engine_inspector.h"
#include "runtime/layer_bench.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

struct BenchFlags {
  EngineFlags engine;
  LayerBenchOptions bench;
  std::string json;
};

Status bench(const BenchFlags& flags) {
  DSV4RT_ASSIGN_OR_RETURN(EngineOptions options, flags.engine.to_options());
  options.limits = bench_limits(flags.bench);
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, Engine::create(options));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<LayerBenchResult> results, bench_layers(*engine, flags.bench));

  EngineInspector inspector(*engine);
  TextTable table({"layer", "kind", "weights", "prefill ms", "prefill tokens/s", "decode ms/step", "weight GB/s"});
  nlohmann::ordered_json report;
  report["prefill_tokens"] = flags.bench.prefill_tokens;
  report["decode_context"] = flags.bench.context_tokens;
  report["batch"] = flags.bench.batch;
  for (const LayerBenchResult& result : results) {
    const std::string kind(attention_kind_name(inspector.layer_spec(result.layer).kind));
    const auto weight_bytes = static_cast<double>(inspector.layer_weight_bytes(result.layer));
    const double tokens_per_s = static_cast<double>(flags.bench.prefill_tokens) / result.prefill_ms * 1e3;
    const double weight_gb_per_s = weight_bytes / result.decode_ms / 1e6;
    table.add_row({std::to_string(result.layer.value), kind, human_bytes(weight_bytes), fixed(result.prefill_ms, 1),
                   fixed(tokens_per_s, 0), fixed(result.decode_ms, 3), fixed(weight_gb_per_s, 1)});
    report["layers"].push_back({{"layer", result.layer.value},
                                {"kind", kind},
                                {"weight_bytes", static_cast<std::int64_t>(weight_bytes)},
                                {"prefill_ms", result.prefill_ms},
                                {"decode_ms", result.decode_ms},
                                {"weight_gb_per_s", weight_gb_per_s}});
  }
  if (flags.json != "-") {
    std::cout << table.to_string() << "check: last decoded token equals the prefilled one in every layer\n";
  }
  return flags.json.empty() ? Status{} : write_json_report(report, flags.json);
}

}  // namespace

void add_bench_command(CLI::App& app, Action& chosen) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand("bench", "Time prefill and decode of every layer on random input");
  flags->engine.add_to(*command);
  command->add_option("--prefill", flags->bench.prefill_tokens, "Tokens of one prefill step")->capture_default_str();
  command->add_option("--repeats", flags->bench.prefill_repeats, "Prefill repetitions; the median counts")
      ->capture_default_str();
  command->add_option("--context", flags->bench.context_tokens, "Cached tokens when decoding starts")
      ->capture_default_str();
  command->add_option("--decode-steps", flags->bench.decode_steps, "Decode steps; the median counts")
      ->capture_default_str();
  command->add_option("--batch", flags->bench.batch, "Sequences decoded together")->capture_default_str();
  command->add_option("--seed", flags->bench.seed, "Seed of the random input")->capture_default_str();
  command->add_option("--json", flags->json,
                      "Write the report as JSON to a file, or - for stdout instead of the table");
  command->callback([flags, &chosen] { chosen = [flags] { return bench(*flags); }; });
}

}  // namespace dsv4rt::cli
