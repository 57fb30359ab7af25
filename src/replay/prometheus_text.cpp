#include "base/prometheus_text.h"

#include <string_view>
#include <utility>

#include "cache/cache_layout.h"
#include "replay/request_writer.h"
#include "replay/run_summary.h"

namespace dsv4rt::replay {
namespace {

void write_latency(PrometheusText& text, std::string_view name, std::string_view help, const LatencyHistogram& ms) {
  text.metric(name, "summary", help);
  for (const auto& [quantile, percent] :
       {std::pair("0.5", 50.0), std::pair("0.9", 90.0), std::pair("0.95", 95.0), std::pair("0.99", 99.0)}) {
    if (ms.count() > 0) text.sample(ms.percentile(percent) / 1e3, {{"quantile", quantile}});
  }
  text.sample(ms.sum() / 1e3, {}, "_sum");
  text.sample(ms.count(), {}, "_count");
}

void write_requests(PrometheusText& text, const RunSummary& summary) {
  const RequestTotals& totals = summary.metrics.requests();
  text.counter("requests_arrived_total", "Requests that arrived", totals.arrived);
  text.metric("requests_ended_total", "counter", "Requests that ended, by outcome");
  text.sample(totals.finished, {{"outcome", "finished"}});
  text.sample(totals.rejected, {{"outcome", "rejected"}});
  text.sample(totals.aborted, {{"outcome", "aborted"}});
  text.metric("requests_rejected_total", "counter", "Rejected requests, by reason");
  for (const RejectReason reason : {RejectReason::kQueueFull, RejectReason::kTooLong, RejectReason::kNoTokens}) {
    text.sample(totals.rejected_for[static_cast<std::size_t>(reason)], {{"reason", reject_reason_name(reason)}});
  }
  text.counter("num_preemptions_total", "Preemptions", totals.preemptions);
  text.counter("prompt_tokens_total", "Prompt tokens of finished requests", totals.input_tokens);
  text.counter("generation_tokens_total", "Output tokens", totals.output_tokens);
  text.counter("prefix_hit_tokens_total", "Prompt tokens that the prefix cache had", totals.hit_tokens);
  text.counter("recomputed_tokens_total", "Tokens run again after preemptions", totals.recomputed_tokens);
  text.gauge("queue_peak", "Most requests waiting at a time", totals.most_waiting);
}

void write_cache(PrometheusText& text, const RunSummary& summary) {
  const CacheOccupancy& latest = summary.metrics.latest();
  text.metric("cache_blocks", "gauge", "Blocks of a role, all layers");
  for (const RoleOccupancy& role : latest.roles) {
    text.sample(role.total_blocks, {{"role", cache_role_name(role.role)}});
  }
  text.metric("cache_live_blocks_peak", "gauge", "Most blocks of a role that sequences held at a time");
  for (std::size_t i = 0; i < latest.roles.size(); ++i) {
    text.sample(summary.metrics.most_live_blocks()[i], {{"role", cache_role_name(latest.roles[i].role)}});
  }
}

}  // namespace

std::string prometheus_text(const RunSummary& summary) {
  PrometheusText text("dsv4rt_replay_");
  const RunMetrics& metrics = summary.metrics;
  text.metric("info", "gauge", "What was replayed how");
  PrometheusLabels labels{{"mode", summary.mode}};
  if (summary.step_times) {
    for (const auto& [name, value] : summary.step_times->provenance) {
      if (name == "device") labels.emplace_back("device", value);
    }
  }
  text.sample(1, labels);
  write_requests(text, summary);
  text.gauge("duration_seconds", "From the first arrival to the last end", summary.duration_ms() / 1e3);
  write_latency(text, "time_to_first_token_seconds", "Arrival to first token", metrics.ttft_ms());
  write_latency(text, "time_per_output_token_seconds", "Mean time of a request's tokens after the first",
                metrics.tpot_ms());
  write_latency(text, "inter_token_latency_seconds", "Gaps between tokens", metrics.itl_ms());
  write_latency(text, "e2e_request_latency_seconds", "Arrival to end", metrics.e2el_ms());
  write_latency(text, "request_queue_time_seconds", "Arrival to admission", metrics.queue_ms());
  const StepTotals& steps = metrics.steps();
  text.metric("steps_total", "counter", "Steps by kind");
  text.sample(steps.decode_only, {{"kind", "decode"}});
  text.sample(steps.prefill_only, {{"kind", "prefill"}});
  text.sample(steps.mixed, {{"kind", "mixed"}});
  if (summary.executor.extrapolated_steps) {
    text.counter("steps_extrapolated_total", "Steps outside the measured shapes", *summary.executor.extrapolated_steps);
  }
  write_cache(text, summary);
  if (summary.service_levels.any()) {
    text.counter("requests_within_service_levels_total", "Finished requests that kept every service level",
                 metrics.requests().kept_service_levels);
  }
  return text.text();
}

}  // namespace dsv4rt::replay
