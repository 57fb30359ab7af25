#include "replay_none.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include "base/message_text.h"
#include "base/try.h"
#include "byte_size.h"
#include "console.h"
#include "outputs.h"
#include "replay/cache_study.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using replay::CacheStudy;
using replay::CapacityResult;
using replay::EvictionPolicy;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kProgressInterval = 1024;  // requests

Result<replay::CacheStudyOptions> study_options(const LogFlags& log, const ReplayNoneFlags& flags) {
  replay::CacheStudyOptions options;
  options.limit = log.limit;
  if (flags.policy == "belady") {
    options.policy = EvictionPolicy::kBelady;
  } else if (flags.policy == "useful") {
    return Status{
        StatusCode::kUnsupported,
        "--policy useful: the engine's own policy weighs what steps cost, so --execute model runs it; accepted "
        "with --execute none: lru, belady"};
  } else if (flags.policy != "lru") {
    return Status{StatusCode::kInvalidArgument, "--policy: '" + printable(flags.policy) + "'; accepted: lru, belady"};
  }
  std::vector<std::string> capacities = flags.sweep_pool;
  const char* const flag = flags.pool_tokens.empty() ? "--sweep-pool" : "--pool-tokens";
  if (!flags.pool_tokens.empty()) capacities = {flags.pool_tokens};
  for (const std::string& text : capacities) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t tokens, parse_token_count(flag, text));
    options.capacities_tokens.push_back(tokens);
  }
  return options;
}

// Nothing was asked for: there is no rate, not one of 0.
std::optional<double> hit_rate(const replay::HitCounters& hits, const CacheStudy& study) {
  if (study.input_tokens == 0) return {};
  return static_cast<double>(hits.hit_tokens) / static_cast<double>(study.input_tokens);
}
std::string hit_rate_text(const replay::HitCounters& hits, const CacheStudy& study) {
  const auto rate = hit_rate(hits, study);
  return rate ? fixed(*rate, 4) : "-";
}

// "inf" for a cache without limit.
std::string count_text(std::int64_t count) {
  return count == replay::kUnlimitedTokens ? "inf" : std::to_string(count);
}
Json count_json(std::int64_t count) {
  return count == replay::kUnlimitedTokens ? Json("inf") : Json(count);
}

Json hits_json(const replay::HitCounters& hits, const CacheStudy& study) {
  const auto rate = hit_rate(hits, study);
  return {{"hit_tokens", hits.hit_tokens},
          {"computed_tokens", study.input_tokens - hits.hit_tokens},
          {"hit_rate", rate ? Json(*rate) : Json()},
          {"hit_blocks", hits.hit_blocks},
          {"hit_requests", hits.hit_requests}};
}

Json study_json(const CacheStudy& study, const LogFlags& log, const ReplayNoneFlags& flags,
                const replay::RequestSource& source) {
  Provenance provenance;
  add_log(provenance, log, source);
  Json json = replay_report_head("none", provenance);
  json["policy"] = flags.policy;
  json["log"] = log_json(log, source);
  json["whole_log"] = study.whole_log;
  json["requests_without_ids"] = study.requests_without_ids;
  json["capacities"] = Json();  // null: without prefix identity there is nothing to know
  if (!study.capacities) return json;
  for (const CapacityResult& result : *study.capacities) {
    Json entry{{"capacity_tokens", count_json(result.capacity_tokens)},
               {"capacity_blocks", count_json(result.capacity_blocks)}};
    entry.update(hits_json(result.hits, study));
    if (flags.policy != "lru") entry["lru"] = hits_json(result.lru, study);
    json["capacities"].push_back(std::move(entry));
  }
  return json;
}

void print_study(const CacheStudy& study, const ReplayNoneFlags& flags) {
  if (!study.capacities) {
    std::cout << "hit rates: not known, since the log does not say what prompts share\n";
    return;
  }
  if (study.requests_without_ids > 0) {
    std::cout << "requests without block ids, which hit nothing: " << study.requests_without_ids << "\n";
  }
  const bool compared = flags.policy != "lru";
  std::vector<std::string> header{"pool tokens", "blocks", "hit tokens", "computed", "requests with a hit", "hit rate"};
  if (compared) header.emplace_back("lru");
  TextTable table(std::move(header));
  for (const CapacityResult& result : *study.capacities) {
    std::vector<std::string> row{
        count_text(result.capacity_tokens),       count_text(result.capacity_blocks),
        std::to_string(result.hits.hit_tokens),   std::to_string(study.input_tokens - result.hits.hit_tokens),
        std::to_string(result.hits.hit_requests), hit_rate_text(result.hits, study)};
    if (compared) row.push_back(hit_rate_text(result.lru, study));
    table.add_row(std::move(row));
  }
  std::cout << "policy: " << flags.policy << "\n" << table.to_string();
}

}  // namespace

Status replay_none(const LogFlags& log, const ReplayNoneFlags& flags, const ReplayFiles& files) {
  DSV4RT_ASSIGN_OR_RETURN(const replay::CacheStudyOptions options, study_options(log, flags));
  DSV4RT_ASSIGN_OR_RETURN(const auto source, open_log(log));
  const std::int64_t bytes = log_bytes(log);
  ProgressLine progress("replay", "bytes");
  const auto on_request = [&](const replay::SourceProgress& read) {
    if (bytes > 0 && read.requests % kProgressInterval == 0) {
      // The last bytes are read before the last requests are counted.
      progress.update(std::min(static_cast<std::int64_t>(read.bytes), bytes - 1), bytes);
    }
  };
  DSV4RT_ASSIGN_OR_RETURN(const CacheStudy study, replay::study_cache(*source, options, on_request));
  if (bytes > 0 && study.requests >= kProgressInterval) progress.update(bytes, bytes);
  if (files.table_wanted()) {
    print_log(log, *source);
    print_study(study, flags);
  }
  return files.wanted() ? write_replay_files(study_json(study, log, flags, *source), files) : Status{};
}

}  // namespace dsv4rt::cli
