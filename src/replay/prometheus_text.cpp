// A writer of its own: prometheus-cpp brings an HTTP server and curl, and this is one file written once.
#include <charconv>
#include <iterator>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "cache/cache_layout.h"
#include "replay/request_writer.h"
#include "replay/run_summary.h"

namespace dsv4rt::replay {
namespace {

using Labels = std::vector<std::pair<std::string_view, std::string_view>>;

class PrometheusText {
 public:
  // Before the first sample of a metric. Samples of one metric stand together.
  void metric(std::string_view name, std::string_view type, std::string_view help) {
    name_ = std::string("dsv4rt_replay_").append(name);
    text_.append("# HELP ").append(name_).append(" ");
    escape(help, false);
    text_.append("\n# TYPE ").append(name_).append(" ").append(type).append("\n");
  }
  void sample(double value, const Labels& labels = {}, std::string_view suffix = "") {
    text_.append(name_).append(suffix);
    if (!labels.empty()) {
      text_ += '{';
      for (std::size_t i = 0; i < labels.size(); ++i) {
        text_.append(i == 0 ? "" : ",").append(labels[i].first).append("=\"");
        escape(labels[i].second, true);
        text_ += '"';
      }
      text_ += '}';
    }
    char digits[32];
    const auto [end, error] = std::to_chars(std::begin(digits), std::end(digits), value);
    DSV4RT_CHECK(error == std::errc());
    text_.append(" ").append(digits, end).append("\n");
  }
  void one(std::string_view name, std::string_view type, std::string_view help, double value) {
    metric(name, type, help);
    sample(value);
  }
  void counter(std::string_view name, std::string_view help, std::int64_t value) {
    one(name, "counter", help, static_cast<double>(value));
  }
  void latency(std::string_view name, std::string_view help, const LatencyHistogram& ms) {
    metric(name, "summary", help);
    for (const auto& [quantile, percent] :
         {std::pair("0.5", 50.0), std::pair("0.9", 90.0), std::pair("0.95", 95.0), std::pair("0.99", 99.0)}) {
      if (ms.count() > 0) sample(ms.percentile(percent) / 1e3, {{"quantile", quantile}});
    }
    sample(ms.sum() / 1e3, {}, "_sum");
    sample(static_cast<double>(ms.count()), {}, "_count");
  }
  std::string take() { return std::move(text_); }

 private:
  // A label value escapes backslash, quote and line end; a help text the first and the last.
  void escape(std::string_view text, bool quotes) {
    for (const char c : text) {
      if (c == '\\') {
        text_ += "\\\\";
      } else if (c == '\n') {
        text_ += "\\n";
      } else if (c == '"' && quotes) {
        text_ += "\\\"";
      } else {
        text_ += c;
      }
    }
  }

  std::string name_;
  std::string text_;
};

void write_requests(PrometheusText& text, const RunSummary& summary) {
  const RequestTotals& totals = summary.metrics.requests();
  text.counter("requests_arrived_total", "Requests that arrived", totals.arrived);
  text.metric("requests_ended_total", "counter", "Requests that ended, by outcome");
  text.sample(static_cast<double>(totals.finished), {{"outcome", "finished"}});
  text.sample(static_cast<double>(totals.rejected), {{"outcome", "rejected"}});
  text.sample(static_cast<double>(totals.aborted), {{"outcome", "aborted"}});
  text.metric("requests_rejected_total", "counter", "Rejected requests, by reason");
  for (const RejectReason reason : {RejectReason::kQueueFull, RejectReason::kTooLong, RejectReason::kNoTokens}) {
    text.sample(static_cast<double>(totals.rejected_for[static_cast<std::size_t>(reason)]),
                {{"reason", reject_reason_name(reason)}});
  }
  text.counter("preemptions_total", "Preemptions", totals.preemptions);
  text.counter("prompt_tokens_total", "Prompt tokens of finished requests", totals.input_tokens);
  text.counter("generation_tokens_total", "Output tokens", totals.output_tokens);
  text.counter("prefix_hit_tokens_total", "Prompt tokens that the prefix cache had", totals.hit_tokens);
  text.counter("recomputed_tokens_total", "Tokens run again after preemptions", totals.recomputed_tokens);
  text.one("queue_peak", "gauge", "Most requests waiting at a time", totals.most_waiting);
}

void write_cache(PrometheusText& text, const RunSummary& summary) {
  const CacheOccupancy& latest = summary.metrics.latest();
  text.metric("cache_blocks", "gauge", "Blocks of a role, all layers");
  for (const RoleOccupancy& role : latest.roles) {
    text.sample(static_cast<double>(role.total_blocks), {{"role", cache_role_name(role.role)}});
  }
  text.metric("cache_live_blocks_peak", "gauge", "Most blocks of a role that sequences held at a time");
  for (std::size_t i = 0; i < latest.roles.size(); ++i) {
    text.sample(static_cast<double>(summary.metrics.most_live_blocks()[i]),
                {{"role", cache_role_name(latest.roles[i].role)}});
  }
}

}  // namespace

std::string prometheus_text(const RunSummary& summary) {
  PrometheusText text;
  const RunMetrics& metrics = summary.metrics;
  text.metric("info", "gauge", "What was replayed how");
  Labels labels{{"mode", summary.mode}};
  if (summary.step_times) {
    for (const auto& [name, value] : summary.step_times->provenance) {
      if (name == "device") labels.emplace_back("device", value);
    }
  }
  text.sample(1, labels);
  write_requests(text, summary);
  text.one("duration_seconds", "gauge", "From the first arrival to the last end", summary.duration_ms() / 1e3);
  text.latency("time_to_first_token_seconds", "Arrival to first token", metrics.ttft_ms());
  text.latency("time_per_output_token_seconds", "Mean time of a request's tokens after the first", metrics.tpot_ms());
  text.latency("inter_token_latency_seconds", "Gaps between tokens", metrics.itl_ms());
  text.latency("e2e_request_latency_seconds", "Arrival to end", metrics.e2el_ms());
  text.latency("request_queue_time_seconds", "Arrival to admission", metrics.queue_ms());
  const StepTotals& steps = metrics.steps();
  text.metric("steps_total", "counter", "Steps by kind");
  text.sample(static_cast<double>(steps.decode_only), {{"kind", "decode"}});
  text.sample(static_cast<double>(steps.prefill_only), {{"kind", "prefill"}});
  text.sample(static_cast<double>(steps.mixed), {{"kind", "mixed"}});
  if (summary.executor.extrapolated_steps) {
    text.counter("steps_extrapolated_total", "Steps outside the measured shapes", *summary.executor.extrapolated_steps);
  }
  write_cache(text, summary);
  if (summary.service_levels.any()) {
    text.counter("requests_within_service_levels_total", "Finished requests that kept every service level",
                 metrics.requests().kept_service_levels);
  }
  return text.take();
}

}  // namespace dsv4rt::replay
