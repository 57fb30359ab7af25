#include "replay/run_metrics.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/message_text.h"
#include "cache/cache_layout.h"

namespace dsv4rt::replay {
namespace {

std::vector<std::string> column_names(const CacheOccupancy& occupancy) {
  std::vector<std::string> names;
  for (const RoleOccupancy& role : occupancy.roles) {
    const std::string name(cache_role_name(role.role));
    names.insert(names.end(), {name + " live", name + " cached", name + " reserved"});
  }
  names.insert(names.end(), {"slots", "boundary states", "running", "waiting", "preempted"});
  return names;
}

// Columns of RunMetrics::events.
enum EventColumn : std::size_t { kArrived, kFinished, kRejected, kPreempted, kPromptTokens, kOutputTokens };

std::vector<std::string> event_names() {
  return {"arrived", "finished", "rejected", "preempted", "prompt tokens", "output tokens"};
}

}  // namespace

bool ServiceLevels::kept_by(const RequestRecord& record) const noexcept {
  if (ttft_ms && !(record.has_ttft() && record.ttft_ms() <= *ttft_ms)) return false;
  if (tpot_ms && record.has_tpot() && record.tpot_ms() > *tpot_ms) return false;
  return !e2el_ms || record.e2el_ms() <= *e2el_ms;
}

Result<ServiceLevels> ServiceLevels::parse(std::string_view text) {
  ServiceLevels levels;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find(','));
    const bool more = part.size() < text.size();
    text.remove_prefix(part.size() + (more ? 1 : 0));
    const std::size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    std::optional<double>* const level = name == "ttft"   ? &levels.ttft_ms
                                         : name == "tpot" ? &levels.tpot_ms
                                         : name == "e2el" ? &levels.e2el_ms
                                                          : nullptr;
    double ms = 0;
    const std::string_view number = colon == std::string_view::npos ? "" : part.substr(colon + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), ms);
    const bool is_number = error == std::errc() && end == number.data() + number.size() && std::isfinite(ms) && ms > 0;
    if (level == nullptr || *level || !is_number || (more && text.empty())) {
      return Status{StatusCode::kInvalidArgument,
                    "service levels: " + quote(part) +
                        "; accepted: ttft, tpot and e2el, each once, with milliseconds above 0: ttft:200,tpot:50"};
    }
    *level = ms;
  }
  return levels;
}

RunMetrics::RunMetrics(const ServiceLevels& levels, const CacheOccupancy& at_start)
    : levels_(levels),
      occupancy_(column_names(at_start)),
      events_(event_names()),
      latest_(at_start),
      most_live_(at_start.roles.size()) {
  slowest_.reserve(kSlowest + 1);
}

void RunMetrics::arrived(const RequestRecord& record, bool has_block_ids) {
  requests_.arrived += 1;
  requests_.with_block_ids += has_block_ids ? 1 : 0;
  if (requests_.first_arrival_ns < 0) requests_.first_arrival_ns = record.arrival_ns;
  events_.add(record.arrival_ns, kArrived);
}

void RunMetrics::admitted(const RequestRecord& record, const SchedulerEvent& event, bool first_time) {
  requests_.recomputed_tokens += event.recomputed_tokens;
  if (!first_time) return;
  requests_.admitted_input_tokens += record.input_tokens;
  requests_.hit_tokens += event.hit_tokens;
  queue_ms_.add(record.queue_ms());
}

void RunMetrics::preempted(const SchedulerEvent& event, std::int64_t at_ns) {
  events_.add(at_ns, kPreempted);
  requests_.preemptions += 1;
  requests_.snapshots += event.snapshot ? 1 : 0;
}

void RunMetrics::tokens(const SchedulerEvent& event, std::optional<double> gap_ms, std::int64_t at_ns) {
  events_.add(at_ns, kOutputTokens, event.output_tokens);
  requests_.output_tokens += event.output_tokens;
  if (gap_ms) itl_ms_.add(*gap_ms);
}

void RunMetrics::ended(const RequestRecord& record) {
  requests_.last_end_ns = std::max(requests_.last_end_ns, record.end_ns);
  const bool kept = record.outcome == RequestOutcome::kFinished && levels_.kept_by(record);
  groups_.add(record, kept);
  if (record.outcome == RequestOutcome::kRejected) {
    requests_.rejected += 1;
    events_.add(record.end_ns, kRejected);
    if (record.reason == RejectReason::kQueueFull) {
      if (requests_.first_rejected_ns < 0) requests_.first_rejected_ns = record.end_ns;
      requests_.last_rejected_ns = record.end_ns;
      requests_.queue_empty_ns = -1;
    }
    requests_.rejected_for[static_cast<std::size_t>(record.reason)] += 1;
    return;
  }
  if (record.outcome == RequestOutcome::kAborted) {
    requests_.aborted += 1;
    return;
  }
  requests_.finished += 1;
  requests_.input_tokens += record.input_tokens;
  requests_.finished_output_tokens += record.output_tokens;
  events_.add(record.end_ns, kFinished);
  requests_.kept_service_levels += kept ? 1 : 0;
  if (record.has_ttft()) ttft_ms_.add(record.ttft_ms());
  if (record.has_tpot()) tpot_ms_.add(record.tpot_ms());
  e2el_ms_.add(record.e2el_ms());
  requests_.least_tokens_per_s =
      std::min(record.tokens_per_s(), requests_.least_tokens_per_s.value_or(record.tokens_per_s()));
  const auto slower = [](const RequestRecord& a, const RequestRecord& b) {
    return a.end_ns - a.arrival_ns > b.end_ns - b.arrival_ns;
  };
  if (slowest_.size() == kSlowest && !slower(record, slowest_.back())) return;
  slowest_.insert(std::upper_bound(slowest_.begin(), slowest_.end(), record, slower), record);
  if (slowest_.size() > kSlowest) slowest_.pop_back();
}

void RunMetrics::step(const StepReport& report, std::int64_t begin_ns, std::int64_t end_ns) {
  steps_.busy_ns += end_ns - begin_ns;
  if (!report.ran) return;
  steps_.steps += 1;
  const bool decodes = report.decode_sequences > 0;
  const bool prefills = report.prefill_sequences > 0;
  steps_.decode_only += decodes && !prefills ? 1 : 0;
  steps_.prefill_only += prefills && !decodes ? 1 : 0;
  steps_.mixed += decodes && prefills ? 1 : 0;
  steps_.decode_tokens += report.decode_tokens;
  steps_.prefill_tokens += report.prefill_tokens;
  steps_.drafted_tokens += report.drafted_tokens;
  steps_.accepted_drafts += report.accepted_drafts;
  events_.add(end_ns, kPromptTokens, report.prefill_tokens);
  steps_.longest_ns = std::max(steps_.longest_ns, end_ns - begin_ns);
  steps_.most_sequences = std::max(steps_.most_sequences, report.decode_sequences + report.prefill_sequences);
  steps_.most_tokens = std::max(steps_.most_tokens, report.decode_tokens + report.prefill_tokens);
}

void RunMetrics::state(std::int64_t begin_ns, std::int64_t end_ns, const CacheOccupancy& occupancy,
                       const QueueState& queue) {
  DSV4RT_CHECK(occupancy.roles.size() == most_live_.size());
  latest_ = occupancy;
  values_.clear();
  for (std::size_t i = 0; i < occupancy.roles.size(); ++i) {
    const RoleOccupancy& role = occupancy.roles[i];
    most_live_[i] = std::max(most_live_[i], role.live_blocks);
    for (const std::int64_t blocks : {role.live_blocks, role.cached_blocks, role.reserved_blocks}) {
      values_.push_back(static_cast<double>(blocks));
    }
  }
  for (const std::int64_t value :
       {std::int64_t{occupancy.live_sequences}, occupancy.kept_states, std::int64_t{queue.running},
        std::int64_t{queue.waiting}, std::int64_t{queue.preempted}}) {
    values_.push_back(static_cast<double>(value));
  }
  occupancy_.add(begin_ns, end_ns, values_);
  const bool recovered = requests_.last_rejected_ns >= 0 && requests_.queue_empty_ns < 0 && queue.waiting == 0;
  if (recovered) requests_.queue_empty_ns = end_ns;
}

void RunMetrics::queue(const QueueState& queue) {
  requests_.most_waiting = std::max(requests_.most_waiting, queue.waiting);
  requests_.most_preempted = std::max(requests_.most_preempted, queue.preempted);
}

}  // namespace dsv4rt::replay
