#include "replay_sweep.h"

#include <algorithm>
#include <iostream>
#include <limits>
#include <optional>

#include "base/try.h"
#include "byte_size.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using replay::LatencyHistogram;
using Json = nlohmann::ordered_json;

Result<std::vector<std::int64_t>> pool_sizes(const LogFlags& log, const ReplayModelFlags& flags) {
  if (log.path == "-") {
    return Status{StatusCode::kInvalidArgument, "--sweep-pool: the log is read once a size; accepted: a file, not -"};
  }
  for (const std::string* file : {&flags.requests, &flags.timeline, &flags.metrics}) {
    if (file->empty()) continue;
    return Status{StatusCode::kInvalidArgument,
                  "--sweep-pool: --requests, --timeline and --metrics are of one run; accepted with several: --json, "
                  "--report"};
  }
  std::vector<std::int64_t> sizes;
  for (const std::string& text : flags.sweep_pool) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t tokens, parse_token_count("--sweep-pool", text));
    if (tokens == std::numeric_limits<std::int64_t>::max()) {
      return Status{StatusCode::kInvalidArgument,
                    "--sweep-pool: inf; a cache that serves has a size, accepted when serving: tokens, e.g. 1M,4M"};
    }
    sizes.push_back(tokens);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// What a size of the pool came to, taken from the run's summary so that both say the same.
Json sweep_entry(const Json& run) {
  const auto two = [](const Json& latency) { return Json{{"p50", latency["p50"]}, {"p99", latency["p99"]}}; };
  return {{"pool_tokens", run["options"]["pool_tokens"]},
          {"hit_rate", run["tokens"]["hit_rate"]},
          {"ttft_ms", two(run["latency_ms"]["ttft"])},
          {"tpot_ms", two(run["latency_ms"]["tpot"])},
          {"finished", run["requests"]["finished"]},
          {"rejected", run["requests"]["rejected"]},
          {"preemptions", run["requests"]["preemptions"]},
          {"output_tokens_per_s", run["throughput"]["output_tokens_per_s"]},
          {"goodput_share", run["goodput"].is_null() ? Json(nullptr) : run["goodput"]["share_of_arrived"]}};
}

void print_sweep(const Json& sweep) {
  TextTable table({"pool tokens", "hit rate", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "preempted", "rejected",
                   "output tok/s", "goodput"});
  for (const Json& entry : sweep) {
    const auto text = [](const Json& value, int digits) {
      return value.is_null() ? std::string("-") : fixed(value.get<double>(), digits);
    };
    table.add_row({std::to_string(entry["pool_tokens"].get<std::int64_t>()), text(entry["hit_rate"], 4),
                   text(entry["ttft_ms"]["p50"], 2), text(entry["ttft_ms"]["p99"], 2), text(entry["tpot_ms"]["p50"], 2),
                   text(entry["tpot_ms"]["p99"], 2), text(entry["preemptions"], 0), text(entry["rejected"], 0),
                   text(entry["output_tokens_per_s"], 0), text(entry["goodput_share"], 4)});
  }
  std::cout << "times in ms\n" << table.to_string();
}

}  // namespace

Status replay_sweep(const LogFlags& log, const ReplayModelFlags& flags, const ReplayFiles& files,
                    const ServeLog& serve) {
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::int64_t> sizes, pool_sizes(log, flags));
  Json sweep = Json::array();
  std::optional<ServedLog> served;
  for (const std::int64_t tokens : sizes) {
    ReplayModelFlags with = flags;
    with.sweep_pool.clear();
    with.pool_tokens = std::to_string(tokens);
    DSV4RT_ASSIGN_OR_RETURN(ServedLog one, serve(with));
    sweep.push_back(sweep_entry(Json::parse(replay::summary_json(one.run))));
    served.emplace(std::move(one));
    if (served->run.stopped) break;  // Ctrl-C ends the sweep with what it has
  }
  if (files.table_wanted()) {
    print_log(log, *served->source);
    print_sweep(sweep);
  }
  if (!files.wanted()) return {};
  Json report = run_report(log, *served);
  report["sweep"] = std::move(sweep);
  return write_replay_files(report, files);
}

}  // namespace dsv4rt::cli
