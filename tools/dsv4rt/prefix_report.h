// What --prefix-cache asks of `run`: the trace from every cached prefix, compared with the cold run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "dsv4rt/engine.h"
#include "tools/lib/prefix_replay.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt::cli {

class PrefixReport {
 public:
  void add_to(CLI::App& command);
  [[nodiscard]] bool wanted() const { return wanted_; }

  // An engine for the trace gets a prefix cache and room for the replays; it may not outlive this object.
  // kInvalidArgument for flags that do not go together.
  Status prepare(const AttentionTrace& trace, EngineOptions& options);
  // Ids of the trace's tokens; empty without --prefix-cache.
  [[nodiscard]] const std::vector<std::int32_t>& token_ids() const { return token_ids_; }

  // Replays, prints a table unless `quiet`, adds to the report. The run's sequence is gone afterwards. kBadInput when
  // no boundary could be compared.
  Status replay(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options, const TraceRun& run,
                nlohmann::ordered_json& report, bool quiet);
  // kMismatch when a replay differs.
  [[nodiscard]] Status result() const;

 private:
  void print() const;

  bool wanted_ = false;
  std::int32_t states_ = 0;
  std::int32_t interval_tokens_ = PrefixPolicy{}.interval_tokens;
  std::vector<std::int32_t> token_ids_;
  KeptBoundaries kept_;
  std::vector<PrefixReplay> replays_;
};

}  // namespace dsv4rt::cli
