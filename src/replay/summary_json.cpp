#include <cmath>

#include <nlohmann/json.hpp>

#include "cache/cache_layout.h"
#include "replay/memory_plan_json.h"
#include "replay/request_writer.h"
#include "replay/run_summary.h"

namespace dsv4rt::replay {
namespace {

using OrderedJson = nlohmann::ordered_json;

// A share or mean with as many digits as a reader can use.
double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

OrderedJson latency(const LatencyHistogram& values) {
  return {{"count", values.count()},      {"mean", values.mean()},        {"min", values.least()},
          {"p50", values.percentile(50)}, {"p90", values.percentile(90)}, {"p95", values.percentile(95)},
          {"p99", values.percentile(99)}, {"max", values.greatest()}};
}

OrderedJson distribution(const LatencyHistogram& values) {
  OrderedJson points = OrderedJson::array();
  for (const auto& [value, up_to] : values.distribution(100)) points.push_back({value, rounded(up_to)});
  return points;
}

const char* mode_name(ArrivalMode mode) {
  switch (mode) {
    case ArrivalMode::kTimeStamps:
      return "time stamps";
    case ArrivalMode::kRate:
      return "rate";
    case ArrivalMode::kClosedLoop:
      return "closed loop";
  }
  return "";
}

const char* policy_name(PrefixEviction eviction) {
  return eviction == PrefixEviction::kLru ? "lru" : "useful";
}

OrderedJson options(const RunSummary& summary) {
  const ArrivalOptions& arrivals = summary.arrivals;
  const SchedulerOptions& scheduler = summary.scheduler;
  OrderedJson json;
  json["arrivals"] = mode_name(arrivals.mode);
  if (arrivals.mode == ArrivalMode::kTimeStamps) json["speed"] = arrivals.speed;
  if (arrivals.mode == ArrivalMode::kRate) json["rate_per_s"] = arrivals.rate_per_s;
  if (arrivals.mode == ArrivalMode::kClosedLoop) json["concurrency"] = arrivals.concurrency;
  json["jitter_ms"] = arrivals.jitter_ms;
  json["scale_lengths"] = summary.length_scale;
  json["limit"] = arrivals.limit;
  json["seed"] = summary.seed;
  json["max_sequences"] = scheduler.max_sequences;
  json["max_context_tokens"] = scheduler.max_context_tokens;
  json["step_tokens"] = scheduler.step_tokens;
  json["max_waiting"] = scheduler.max_waiting;
  json["reserve"] = scheduler.reservation == Reservation::kWhole ? "whole" : "prompt";
  json["preempt"] = scheduler.preemption == Preemption::kRecompute ? "recompute" : "snapshot";
  json["priority_aging_ms"] = to_ms(scheduler.aging_ns);
  json["draft_tokens"] = scheduler.draft_tokens;
  json["acceptance"] = summary.acceptance;
  json["pool_tokens"] = summary.limits.pool_tokens;
  json["boundary_states"] = summary.limits.boundary_states;
  json["policy"] = summary.eviction ? OrderedJson(policy_name(*summary.eviction)) : OrderedJson(nullptr);
  return json;
}

OrderedJson requests(const RunSummary& summary) {
  const RequestTotals& totals = summary.metrics.requests();
  OrderedJson json = {{"arrived", totals.arrived},
                      {"finished", totals.finished},
                      {"rejected", totals.rejected},
                      {"aborted", totals.aborted}};
  for (const RejectReason reason : {RejectReason::kQueueFull, RejectReason::kTooLong, RejectReason::kNoTokens}) {
    json["rejected_for"][reject_reason_name(reason)] = totals.rejected_for[static_cast<std::size_t>(reason)];
  }
  json["most_waiting"] = totals.most_waiting;
  json["preemptions"] = totals.preemptions;
  json["preemptions_by_snapshot"] = totals.snapshots;
  json["most_preempted"] = totals.most_preempted;
  json["least_tokens_per_s"] =
      totals.least_tokens_per_s ? OrderedJson(*totals.least_tokens_per_s) : OrderedJson(nullptr);
  return json;
}

OrderedJson tokens(const RunSummary& summary) {
  const RequestTotals& totals = summary.metrics.requests();
  OrderedJson json = {{"input_of_finished", totals.input_tokens},
                      {"output", totals.output_tokens},
                      {"input_admitted", totals.admitted_input_tokens}};
  // A log without block ids does not say what is shared: no rate is better than a wrong one.
  json["prefix_identity"] = totals.with_block_ids == 0                ? "none"
                            : totals.with_block_ids == totals.arrived ? "block ids"
                                                                      : "block ids of some";
  json["hit"] = totals.hit_tokens;
  json["hit_rate"] = totals.with_block_ids > 0 && totals.admitted_input_tokens > 0
                         ? OrderedJson(share(totals.hit_tokens, totals.admitted_input_tokens))
                         : OrderedJson(nullptr);
  json["recomputed"] = totals.recomputed_tokens;
  json["prefill_run"] = summary.metrics.steps().prefill_tokens;
  json["drafted"] = summary.metrics.steps().drafted_tokens;
  json["drafts_accepted"] = summary.metrics.steps().accepted_drafts;
  return json;
}

OrderedJson goodput(const RunSummary& summary) {
  const ServiceLevels& levels = summary.service_levels;
  if (!levels.any()) return nullptr;
  const RequestTotals& totals = summary.metrics.requests();
  OrderedJson json;
  if (levels.ttft_ms) json["ttft_ms"] = *levels.ttft_ms;
  if (levels.tpot_ms) json["tpot_ms"] = *levels.tpot_ms;
  if (levels.e2el_ms) json["e2el_ms"] = *levels.e2el_ms;
  const double seconds = summary.duration_ms() / 1e3;
  json["requests"] = totals.kept_service_levels;
  json["requests_per_s"] = seconds > 0 ? static_cast<double>(totals.kept_service_levels) / seconds : 0.0;
  json["share_of_arrived"] = share(totals.kept_service_levels, totals.arrived);
  return json;
}

OrderedJson steps(const RunSummary& summary) {
  const StepTotals& totals = summary.metrics.steps();
  OrderedJson json = {{"count", totals.steps},
                      {"decode", totals.decode_only},
                      {"prefill", totals.prefill_only},
                      {"mixed", totals.mixed},
                      {"most_sequences", totals.most_sequences},
                      {"most_tokens", totals.most_tokens},
                      {"longest_ms", to_ms(totals.longest_ns)},
                      {"busy_ms", to_ms(totals.busy_ns)}};
  const ExecutorCounts& counts = summary.executor;
  json["captured"] = counts.captured_steps ? OrderedJson(*counts.captured_steps) : OrderedJson(nullptr);
  json["eager"] = counts.captured_steps ? OrderedJson(totals.steps - *counts.captured_steps) : OrderedJson(nullptr);
  json["graph_captures"] = counts.graph_captures ? OrderedJson(*counts.graph_captures) : OrderedJson(nullptr);
  if (counts.extrapolated_steps) {
    json["extrapolated"] = *counts.extrapolated_steps;
    json["extrapolated_share"] = share(*counts.extrapolated_steps, totals.steps);
  }
  return json;
}

OrderedJson cache(const RunSummary& summary) {
  const CacheOccupancy& latest = summary.metrics.latest();
  OrderedJson roles = OrderedJson::array();
  for (std::size_t i = 0; i < latest.roles.size(); ++i) {
    const RoleOccupancy& role = latest.roles[i];
    const std::int64_t most = summary.metrics.most_live_blocks()[i];
    roles.push_back({{"role", cache_role_name(role.role)},
                     {"blocks", role.total_blocks},
                     {"most_live", most},
                     {"most_live_share", share(most, role.total_blocks)},
                     {"live_at_end", role.live_blocks},
                     {"cached_at_end", role.cached_blocks}});
  }
  const PrefixStats& prefixes = summary.prefixes;
  return {{"roles", roles},
          {"prefix_lookups", prefixes.lookups},
          {"prefix_units_stored", prefixes.units_stored},
          {"prefix_units_removed", prefixes.units_removed_for_space + prefixes.units_removed_by_quota},
          {"boundary_states_taken", prefixes.states_taken},
          {"boundary_states_removed", prefixes.states_removed},
          {"saves", summary.executor.saves},
          {"saved_bytes", summary.executor.saved_bytes},
          {"peak_saved_bytes", summary.executor.peak_saved_bytes}};
}

// When requests were refused for a full queue, and when nobody waited any more; null: never.
OrderedJson overload(const RequestTotals& totals) {
  const auto time = [](std::int64_t ns) { return ns < 0 ? OrderedJson(nullptr) : OrderedJson(to_ms(ns)); };
  const bool recovered = totals.queue_empty_ns >= 0;
  return {{"first_rejected_ms", time(totals.first_rejected_ns)},
          {"last_rejected_ms", time(totals.last_rejected_ns)},
          {"queue_empty_ms", time(totals.queue_empty_ns)},
          {"recovery_ms", recovered ? time(totals.queue_empty_ns - totals.last_rejected_ns) : OrderedJson(nullptr)}};
}

OrderedJson memory(const RunSummary& summary) {
  const MemoryPlan& plan = summary.memory;
  OrderedJson json = {{"pool_tokens", plan.limits.pool_tokens}};
  json["roles"] = planned_regions_json(plan);
  json["bytes_per_token"] = plan.bytes_per_token;
  json["bytes_per_sequence"] = plan.bytes_per_sequence;
  json["boundary_state_bytes"] = plan.boundary_state_bytes;
  json["block_table_bytes"] = plan.block_table_bytes;
  json["step_metadata_bytes"] = plan.step_metadata_bytes;
  json["cache_bytes"] = plan.total_bytes;
  if (summary.engine) {
    const EngineOrigin& engine = *summary.engine;
    json["weight_bytes"] = engine.weight_bytes;
    json["workspace_bytes"] = engine.workspace_bytes;
    json["scratch_bytes"] = engine.scratch_bytes;
    json["graph_bytes"] = engine.graph_bytes;
    json["output_row_bytes"] = engine.output_row_bytes;
    json["total_bytes"] = plan.total_bytes + engine.weight_bytes + engine.workspace_bytes + engine.scratch_bytes +
                          engine.graph_bytes + engine.output_row_bytes;
  }
  return json;
}

OrderedJson events(const EventSeries& series) {
  OrderedJson json = {{"interval_ms", to_ms(series.interval_ns())}, {"columns", series.columns()}};
  OrderedJson& counts = json["counts"] = OrderedJson::array();
  for (std::size_t i = 0; i < series.intervals(); ++i) {
    OrderedJson row = OrderedJson::array();
    for (std::size_t c = 0; c < series.columns().size(); ++c) row.push_back(series.count(i, c));
    counts.push_back(row);
  }
  return json;
}

OrderedJson engine(const RunSummary& summary) {
  const EngineOrigin& engine = *summary.engine;
  return {{"backend", engine.backend},
          {"layers", engine.layers},
          {"deterministic", is_batch_invariant(engine.linear_precision)},
          {"linear_precision", linear_precision_name(engine.linear_precision)},
          {"moe_us_per_step", engine.experts.us_per_step},
          {"moe_us_per_token", engine.experts.us_per_token}};
}

OrderedJson groups(const RequestGroups& groups) {
  const auto latency_of = [](const LatencyHistogram& values) -> OrderedJson {
    return {{"count", values.count()},
            {"mean", values.mean()},
            {"p50", values.percentile(50)},
            {"p99", values.percentile(99)}};
  };
  OrderedJson each = OrderedJson::array();
  for (std::size_t g = 0; g < groups.used(); ++g) {
    const RequestGroup& group = groups[g];
    each.push_back({{"requests", group.requests},
                    {"finished", group.finished},
                    {"rejected", group.rejected},
                    {"kept_service_levels", group.kept_service_levels},
                    {"preemptions", group.preemptions},
                    {"admitted_input_tokens", group.admitted_input_tokens},
                    {"hit_tokens", group.hit_tokens},
                    {"output_tokens", group.output_tokens},
                    {"ttft_ms", latency_of(group.ttft_ms)},
                    {"tpot_ms", latency_of(group.tpot_ms)},
                    {"e2el_ms", latency_of(group.e2el_ms)}});
  }
  return {{"size", groups.size()}, {"each", each}};
}

OrderedJson occupancy(const OccupancySeries& series) {
  OrderedJson json = {{"interval_ms", to_ms(series.interval_ns())}, {"columns", series.columns()}};
  OrderedJson& mean = json["mean"] = OrderedJson::array();
  OrderedJson& most = json["max"] = OrderedJson::array();
  for (std::size_t i = 0; i < series.intervals(); ++i) {
    OrderedJson mean_row = OrderedJson::array();
    OrderedJson most_row = OrderedJson::array();
    for (std::size_t c = 0; c < series.columns().size(); ++c) {
      mean_row.push_back(rounded(series.mean(i, c)));
      most_row.push_back(series.greatest(i, c));
    }
    mean.push_back(mean_row);
    most.push_back(most_row);
  }
  return json;
}

OrderedJson machines(const RunSummary& summary) {
  OrderedJson json = OrderedJson::array();
  for (const MachineTotals& machine : summary.machines) {
    json.push_back({{"requests", machine.requests},
                    {"input_admitted", machine.admitted_input_tokens},
                    {"hit", machine.hit_tokens},
                    {"steps", machine.steps},
                    {"busy_ms", to_ms(machine.busy_ns)}});
  }
  return json;
}

OrderedJson slowest(const RunMetrics& metrics) {
  OrderedJson json = OrderedJson::array();
  for (const RequestRecord& record : metrics.slowest()) json.push_back(OrderedJson::parse(request_line(record)));
  return json;
}

}  // namespace

double RunSummary::duration_ms() const noexcept {
  const RequestTotals& totals = metrics.requests();
  return totals.first_arrival_ns < 0 ? 0 : to_ms(totals.last_end_ns - totals.first_arrival_ns);
}

std::string summary_json(const RunSummary& summary) {
  const RunMetrics& metrics = summary.metrics;
  const RequestTotals& totals = metrics.requests();
  const double seconds = summary.duration_ms() / 1e3;
  const auto per_s = [&](std::int64_t count) { return seconds > 0 ? static_cast<double>(count) / seconds : 0.0; };
  OrderedJson json;
  json["format"] = "dsv4rt-replay";
  json["version"] = 1;
  json["mode"] = summary.mode;
  json["meaning"] = "performance only: token ids are made up, so what a model would answer is not";
  json["stopped"] = summary.stopped;
  json["options"] = options(summary);
  json["requests"] = requests(summary);
  json["tokens"] = tokens(summary);
  json["duration_ms"] = summary.duration_ms();
  json["throughput"] = {{"requests_per_s", per_s(totals.finished)},
                        {"input_tokens_per_s", per_s(totals.input_tokens)},
                        {"output_tokens_per_s", per_s(totals.output_tokens)}};
  json["latency_ms"] = {{"ttft", latency(metrics.ttft_ms())},
                        {"tpot", latency(metrics.tpot_ms())},
                        {"itl", latency(metrics.itl_ms())},
                        {"e2el", latency(metrics.e2el_ms())},
                        {"queue", latency(metrics.queue_ms())}};
  json["percentile_error"] = LatencyHistogram::kRelativeError;
  json["goodput"] = goodput(summary);
  json["steps"] = steps(summary);
  json["cache"] = cache(summary);
  json["memory"] = memory(summary);
  if (summary.route) {
    json["route"] = route_name(*summary.route);
    json["machines"] = machines(summary);
  }
  if (summary.engine) json["engine"] = engine(summary);
  if (summary.outputs.requests() > 0) {
    json["outputs"] = {{"requests", summary.outputs.requests()}, {"sha256", summary.outputs.hex()}};
  }
  if (summary.step_times) {
    OrderedJson& times = json["step_times"];
    times["provenance"] = OrderedJson::object();
    for (const auto& [name, text] : summary.step_times->provenance) times["provenance"][name] = text;
    times["points"] = summary.step_times->points;
    times["moe_us_per_step"] = summary.step_times->experts.us_per_step;
    times["moe_us_per_token"] = summary.step_times->experts.us_per_token;
  }
  json["distribution_ms"] = {{"ttft", distribution(metrics.ttft_ms())},
                             {"tpot", distribution(metrics.tpot_ms())},
                             {"itl", distribution(metrics.itl_ms())},
                             {"e2el", distribution(metrics.e2el_ms())},
                             {"queue", distribution(metrics.queue_ms())}};
  json["overload"] = overload(totals);
  json["occupancy"] = occupancy(metrics.occupancy());
  json["events"] = events(metrics.events());
  json["groups"] = groups(metrics.groups());
  json["slowest"] = slowest(metrics);
  json["wall_ms"] = summary.wall_ms;
  json["wall_speedup"] = summary.wall_speedup();
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace dsv4rt::replay
