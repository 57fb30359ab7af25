// What an engine holds and has done, as Prometheus text. docs/metrics.md has the table of metrics.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "base/message_text.h"
#include "base/prometheus_text.h"
#include "base/try.h"
#include "base/utf8.h"
#include "dsv4rt/version.h"
#include "engine/engine_impl.h"
#include "layout/row_format.h"

namespace dsv4rt {
namespace {

// Labels that samples have already.
constexpr std::array<std::string_view, 12> kOwnLabels = {"backend",
                                                         "csa_rows_per_block",
                                                         "hca_rows_per_block",
                                                         "index_format",
                                                         "kind",
                                                         "outcome",
                                                         "part",
                                                         "reason",
                                                         "role",
                                                         "row_format",
                                                         "state",
                                                         "version"};

Result<PrometheusLabels> check_labels(std::span<const MetricLabel> given) {
  constexpr std::size_t kLongestText = 256;
  const auto refused = [](std::string_view name, const std::string& why) {
    return Status{StatusCode::kInvalidArgument, "metrics: label '" + printable(name.substr(0, 64)) + "' " + why};
  };
  if (given.size() > kMostMetricLabels) {
    return Status{StatusCode::kInvalidArgument, "metrics: " + std::to_string(given.size()) +
                                                    " labels; accepted: at most " + std::to_string(kMostMetricLabels)};
  }
  PrometheusLabels labels;
  for (const auto& [name, value] : given) {
    if (!is_prometheus_label_name(name) || name.size() > kLongestText) {
      return refused(name, "is no name; accepted: letters, digits and _, not beginning with a digit or __, at most " +
                               std::to_string(kLongestText));
    }
    if (std::find(kOwnLabels.begin(), kOwnLabels.end(), name) != kOwnLabels.end()) {
      return refused(name, "is used by the metrics themselves");
    }
    const auto same = [name = name](const auto& other) { return other.first == name; };
    if (std::any_of(labels.begin(), labels.end(), same)) return refused(name, "is given twice");
    if (value.size() > kLongestText || !is_utf8(value)) {
      return refused(name, "has a value that is not UTF-8 of at most " + std::to_string(kLongestText) + " bytes");
    }
    labels.emplace_back(name, value);
  }
  return labels;
}

void write_cache(const EngineState& state, PrometheusText& text) {
  text.gauge("sequences", "Sequences that live", state.live_sequences);
  text.gauge("sequences_max", "Most sequences that may live", state.max_sequences);
  text.gauge("step_outstanding", "Whether a step is prepared and not yet committed or cancelled",
             state.step == 0 ? 0 : 1);
  if (state.roles.empty()) return;
  double usage = 0;
  for (const RoleState& role : state.roles) {
    if (role.total_blocks == 0) continue;
    usage = std::max(
        usage, static_cast<double>(role.used_blocks + role.pinned_blocks) / static_cast<double>(role.total_blocks));
  }
  text.gauge("kv_cache_usage_perc", "Part of the fullest role's blocks that cannot be had; 1 is all", usage);
  text.gauge("tokens_left", "Tokens that fit into the unreserved blocks of the shortest role", state.tokens_left);
  text.metric("cache_blocks", "gauge", "Blocks of a role in each of its layers");
  for (const RoleState& role : state.roles) {
    const std::string_view name = cache_role_name(role.role);
    text.sample(role.free_blocks, {{"role", name}, {"state", "free"}});
    text.sample(role.used_blocks, {{"role", name}, {"state", "used"}});
    text.sample(role.cached_blocks, {{"role", name}, {"state", "cached"}});
    text.sample(role.pinned_blocks, {{"role", name}, {"state", "pinned"}});
  }
  text.metric("cache_blocks_reserved", "gauge", "Free and cached blocks that are owed to reservations");
  for (const RoleState& role : state.roles) {
    text.sample(role.reserved_blocks, {{"role", cache_role_name(role.role)}});
  }
}

void write_memory(const EngineMemory& memory, PrometheusText& text) {
  text.metric("memory_bytes", "gauge", "Memory planned at creation, by what it is for");
  text.sample(memory.weight_bytes, {{"part", "weights"}});
  text.sample(memory.cache.total_bytes, {{"part", "cache"}});
  text.sample(memory.workspace_bytes, {{"part", "workspace"}});
  text.sample(memory.scratch_bytes, {{"part", "scratch"}});
  text.sample(memory.exchange_bytes, {{"part", "exchange"}});
  text.sample(memory.graph_bytes, {{"part", "graphs"}});
}

void write_steps(const StepCounts& steps, const GraphStats& graphs, PrometheusText& text) {
  text.metric("steps_total", "counter", "Steps that ended");
  text.sample(steps.committed, {{"outcome", "committed"}});
  text.sample(steps.cancelled, {{"outcome", "cancelled"}});
  text.metric("step_tokens_total", "counter", "Tokens of committed steps");
  text.sample(steps.accepted_tokens, {{"outcome", "accepted"}});
  text.sample(steps.rejected_tokens, {{"outcome", "rejected"}});
  text.metric("step_runs_total", "counter", "Whole steps that ran, layer by layer or as a captured graph");
  text.sample(graphs.eager_steps, {{"kind", "eager"}});
  text.sample(graphs.replays, {{"kind", "graph"}});
  text.counter("graph_captures_total", "Graphs made", graphs.captures);
  text.counter("graph_evictions_total", "Graphs that left for another", graphs.evictions);
}

void write_prefixes(const PrefixStats& stats, PrometheusText& text) {
  text.counter("prefix_cache_queries_total", "Tokens that sequences were created with",
               stats.hit_tokens + stats.missed_tokens);
  text.counter("prefix_cache_hits_total", "Those of them that were cached", stats.hit_tokens);
  text.counter("prefix_lookups_total", "Sequences created with token ids", stats.lookups);
  text.counter("prefix_units_stored_total", "Units of prefixes that became cached", stats.units_stored);
  text.metric("prefix_units_removed_total", "counter", "Units of prefixes that were forgotten");
  text.sample(stats.units_removed_for_space, {{"reason", "space"}});
  text.sample(stats.units_removed_by_quota, {{"reason", "quota"}});
  text.sample(stats.units_removed_on_request, {{"reason", "request"}});
  text.counter("prefix_states_taken_total", "Boundary states kept", stats.states_taken);
  text.counter("prefix_states_removed_total", "Boundary states that left, for another or with their unit",
               stats.states_removed);
  text.counter("prefix_states_refused_total", "Boundary states not kept, as every other was pinned",
               stats.states_refused);
  text.counter("prefix_sequences_detached_total", "Sequences whose further tokens are not kept",
               stats.sequences_detached);
  text.gauge("prefix_units", "Units of prefixes that are cached", stats.kept_units);
  text.gauge("prefix_units_pinned", "Those of them that are pinned", stats.pinned_units);
  text.gauge("prefix_states", "Boundary states that are kept", stats.kept_states);
}

}  // namespace

Result<std::string> Engine::metrics(std::span<const MetricLabel> given) const {
  return impl_->call("metrics", Impl::Use::kRead, [&]() -> Result<std::string> {
    DSV4RT_ASSIGN_OR_RETURN(PrometheusLabels labels, check_labels(given));
    DSV4RT_ASSIGN_OR_RETURN(const EngineState now, state());
    PrometheusText text("dsv4rt_", std::move(labels));
    const CacheFormats& formats = impl_->layout.formats();
    const std::string library = build_info().version;
    const std::string csa_rows = std::to_string(formats.csa_rows_per_block);
    const std::string hca_rows = std::to_string(formats.hca_rows_per_block);
    text.metric("info", "gauge", "What runs");
    text.sample(1, {{"version", library},
                    {"backend", impl_->backend->name()},
                    {"row_format", row_format_name(formats.rows)},
                    {"index_format", index_key_format_name(formats.index_keys)},
                    {"csa_rows_per_block", csa_rows},
                    {"hca_rows_per_block", hca_rows}});
    write_cache(now, text);
    write_memory(impl_->memory, text);
    write_steps(impl_->step_counts, impl_->graph_stats, text);
    text.counter("non_finite_entries_total", "Entries of steps whose outputs were not finite", impl_->outputs.found());
    if (impl_->options.limits.boundary_states > 0) write_prefixes(impl_->manager->prefix_stats(), text);
    return text.text();
  });
}

}  // namespace dsv4rt
