// dsv4rt replay --execute model: a log served by a scheduler on the model of a machine. What --execute real shares with
// it: flags of serving, the table, the report.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dsv4rt/memory_plan.h"
#include "dsv4rt/status.h"
#include "log_report.h"
#include "replay/replay_run.h"
#include "replay_files.h"

namespace dsv4rt::cli {

struct ReplayModelFlags {
  std::string config;      // config.json of the model
  std::string step_table;  // step times of the machine
  std::string pool_tokens = "4M";
  std::string pool;                     // bytes instead
  std::vector<std::string> sweep_pool;  // one replay for each instead
  std::string policy = "useful";
  std::int32_t max_sequences = 64;
  std::string max_context = "128Ki";
  std::int32_t step_tokens = 2048;
  std::int32_t max_waiting = 1024;
  std::int32_t prefix_states = 1024;
  std::int32_t prefix_interval = 2048;
  double speed = 1;
  double rate = 0;
  std::int32_t concurrency = 0;
  double jitter_ms = 0;
  double scale_lengths = 1;
  std::string slo;
  std::string reserve = "whole";
  std::string preempt = "recompute";
  std::string snapshot_memory = "16GiB";
  std::int32_t draft = 0;
  double accept = 0;
  double moe_us_per_step = 0;
  double moe_us_per_token = 0;
  std::uint64_t seed = 0;
  std::int32_t machines = 1;
  std::string route = "prefix";
  std::string requests;
  std::string timeline;
  std::string metrics;

  void add_to(CLI::App& command);
  // As the flags say; `pool` is not looked at.
  [[nodiscard]] Result<CacheLimits> limits() const;
};

// Flags that are missing, or do not go with each other or with the log: `text` names them and says what is accepted.
inline Status refused(const std::string& text) {
  return {StatusCode::kInvalidArgument, text};
}

// Everything but limits of the cache: scheduler, arrivals, files, the end at Ctrl-C. `info`: of the log.
Result<replay::ReplayOptions> serving_options(const LogFlags& log, const ReplayModelFlags& flags,
                                              const replay::SourceInfo& info);

// "useful" or "lru"; what else is refused, with the reason for "belady".
Result<PrefixEviction> parse_eviction(const std::string& policy);

// A log that was served.
struct ServedLog {
  std::unique_ptr<replay::RequestSource> source;
  replay::RunSummary run;
  Provenance provenance;                   // without the log, which is digested while it is read
  std::vector<std::int32_t> devices = {};  // --devices, in the order of the machines; empty: not given
};

// The table.
void print_run(const replay::RunSummary& run);
// The report of a run, whose mode names the executor; and the files that are wanted of it.
nlohmann::ordered_json run_report(const LogFlags& log, const ServedLog& served);
Status write_run_report(const LogFlags& log, const ServedLog& served, const ReplayFiles& files);

// Prints the table and writes the files.
Status replay_model(const LogFlags& log, const ReplayModelFlags& flags, const ReplayFiles& files);

}  // namespace dsv4rt::cli
