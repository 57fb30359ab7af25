#include "prefix_report.h"

#include <algorithm>
#include <iostream>

#include <spdlog/spdlog.h>

#include "base/try.h"
#include "console.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using Json = nlohmann::ordered_json;

// Units are at least as long.
constexpr std::int64_t kLeastUnitTokens = 128;

// States for every boundary that the policy takes: those at multiples of the interval, the end of the prompt, the end
// of the output, and the one before the latter while they change places.
std::int32_t states_of(std::int64_t tokens, std::int64_t interval_tokens) {
  const std::int64_t every = std::max(interval_tokens, kLeastUnitTokens);
  return static_cast<std::int32_t>((interval_tokens == 0 ? 0 : tokens / every) + 3);
}

const char* yes(bool equal) {
  return equal ? "yes" : "NO";
}

}  // namespace

void PrefixReport::add_to(CLI::App& command) {
  CLI::Option* flag =
      command.add_flag("--prefix-cache", wanted_,
                       "Run with a prefix cache, then begin a sequence at every boundary at which a state is kept, run "
                       "the rest again and compare outputs and caches byte for byte; exit 4 on a difference. Traces "
                       "have no token ids: a token's id is the first 31 bits of the SHA-256 of its input rows");
  command.add_option("--prefix-states", states_, "Boundary states to keep; default enough for all")
      ->check(CLI::PositiveNumber)
      ->needs(flag);
  command
      .add_option("--prefix-interval", interval_tokens_,
                  "Tokens between states; 1: at every unit, 0: only at the ends of prompt and output")
      ->check(CLI::NonNegativeNumber)
      ->needs(flag)
      ->capture_default_str();
}

Status PrefixReport::prepare(const AttentionTrace& trace, EngineOptions& options) {
  if (!wanted_) return {};
  if (!is_batch_invariant(options.linear_precision)) {
    return {StatusCode::kInvalidArgument,
            "--prefix-cache: replays are compared byte for byte, which --linear-precision nvfp4 does not promise"};
  }
  token_ids_ = trace_token_ids(trace);
  options.limits.max_sequences = 2;
  options.limits.max_context_tokens += 1;
  options.limits.boundary_states = states_ > 0 ? states_ : states_of(trace.tokens(), interval_tokens_);
  options.prefix_cache.policy.interval_tokens = interval_tokens_;
  options.prefix_cache.on_event = kept_.listener();
  return {};
}

Status PrefixReport::replay(Engine& engine, const AttentionTrace& trace, const TraceRunOptions& options,
                            const TraceRun& run, Json& report, bool quiet) {
  if (!wanted_) return {};
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<RoleDigest> cache, digest_roles(engine, run.sequence));
  ProgressLine progress("prefixes", "boundaries");
  DSV4RT_ASSIGN_OR_RETURN(
      replays_, replay_prefixes(engine, trace, options, {.run = run, .cache = cache}, kept_,
                                [&](std::int64_t done, std::int64_t total) { progress.update(done, total); }));
  Json& json = report["prefix_cache"];
  const MemoryPlan& plan = engine.memory().cache;
  json["unit_tokens"] = plan.prefix_unit_tokens;
  json["interval_tokens"] = interval_tokens_;
  json["states"] = plan.limits.boundary_states;
  json["bytes_per_state"] = plan.bytes_per_boundary_state;
  json["hit_tokens"] = engine.prefix_stats().hit_tokens;
  json["boundaries"] = Json::array();
  for (const PrefixReplay& replay : replays_) {
    Json& entry = json["boundaries"].emplace_back();
    entry["boundary"] = replay.boundary;
    if (!replay.skipped.empty()) {
      entry["skipped"] = replay.skipped;
      continue;
    }
    entry["hit_tokens"] = replay.hit_tokens;
    entry["outputs_equal"] = replay.outputs_equal;
    entry["caches_equal"] = replay.caches_equal;
    entry["differences"] = replay.differences;
  }
  if (!quiet) print();
  const bool compared =
      std::any_of(replays_.begin(), replays_.end(), [](const PrefixReplay& replay) { return replay.skipped.empty(); });
  if (compared) return {};
  return {StatusCode::kBadInput, "--prefix-cache: nothing was compared: of the trace's " +
                                     std::to_string(trace.tokens()) +
                                     " tokens no boundary state is kept; the shortest "
                                     "prefix has " +
                                     std::to_string(plan.prefix_unit_tokens)};
}

void PrefixReport::print() const {
  TextTable table({"boundary", "hit tokens", "outputs equal", "caches equal", "result"});
  for (const PrefixReplay& replay : replays_) {
    if (!replay.skipped.empty()) {
      table.add_row({std::to_string(replay.boundary), "-", "-", "-", "skipped: " + replay.skipped});
      continue;
    }
    table.add_row({std::to_string(replay.boundary), std::to_string(replay.hit_tokens), yes(replay.outputs_equal),
                   yes(replay.caches_equal), replay.ok() ? "ok" : "MISMATCH"});
  }
  std::cout << table.to_string();
}

Status PrefixReport::result() const {
  std::size_t mismatches = 0;
  for (const PrefixReplay& replay : replays_) {
    for (const std::string& difference : replay.differences) {
      spdlog::error("prefix of {} tokens: {}", replay.boundary, difference);
    }
    mismatches += replay.differences.empty() ? 0 : 1;
  }
  if (mismatches == 0) return {};
  return {StatusCode::kMismatch, std::to_string(mismatches) + " of " + std::to_string(replays_.size()) +
                                     " prefixes give other bytes than the cold run"};
}

}  // namespace dsv4rt::cli
