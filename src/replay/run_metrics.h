// The numbers of a run, collected while it goes on, in memory that does not depend on its length.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsv4rt/status.h"
#include "replay/event_series.h"
#include "replay/latency_histogram.h"
#include "replay/occupancy_series.h"
#include "replay/replay_executor.h"
#include "replay/request_groups.h"
#include "replay/request_record.h"
#include "replay/scheduler.h"

namespace dsv4rt::replay {

// What a request has to keep to count for goodput; an unset one does not matter.
struct ServiceLevels {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;

  [[nodiscard]] bool any() const noexcept { return ttft_ms || tpot_ms || e2el_ms; }
  // A request with one output token has no time between tokens to miss.
  [[nodiscard]] bool kept_by(const RequestRecord& record) const noexcept;
  // "ttft:200,tpot:50", milliseconds; kInvalidArgument naming the part and the accepted names.
  static Result<ServiceLevels> parse(std::string_view text);
};

struct StepTotals {
  std::int64_t steps = 0;
  std::int64_t decode_only = 0;
  std::int64_t prefill_only = 0;
  std::int64_t mixed = 0;
  std::int64_t decode_tokens = 0;  // drafts included
  std::int64_t prefill_tokens = 0;
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_drafts = 0;
  std::int64_t busy_ns = 0;  // in steps, and in moving sequences
  std::int64_t longest_ns = 0;
  std::int32_t most_sequences = 0;  // in one step
  std::int32_t most_tokens = 0;
};

struct RequestTotals {
  std::int64_t arrived = 0;
  std::int64_t finished = 0;
  std::int64_t rejected = 0;
  std::int64_t aborted = 0;
  std::array<std::int64_t, 4> rejected_for{};  // indexed by RejectReason
  std::int64_t kept_service_levels = 0;        // among the finished ones
  std::int64_t with_block_ids = 0;
  std::int64_t input_tokens = 0;   // prompts of finished ones
  std::int64_t output_tokens = 0;  // all that were made
  std::int64_t finished_output_tokens = 0;
  std::int64_t admitted_input_tokens = 0;  // prompts of all that were admitted
  std::int64_t hit_tokens = 0;             // had by the cache, among these
  std::int64_t recomputed_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t snapshots = 0;  // preemptions that kept the sequence
  std::int64_t first_arrival_ns = -1;
  std::int64_t last_end_ns = 0;
  std::int32_t most_waiting = 0;             // in the queue, preempted ones not counted
  std::int32_t most_preempted = 0;           // at a time
  std::optional<double> least_tokens_per_s;  // RequestRecord::tokens_per_s of finished ones
  // Overload and recovery; -1: never.
  std::int64_t first_rejected_ns = -1;  // for a full queue
  std::int64_t last_rejected_ns = -1;
  std::int64_t queue_empty_ns = -1;  // first time without a waiting request after the last rejection
};

class RunMetrics {
 public:
  static constexpr std::size_t kSlowest = 20;

  RunMetrics(const ServiceLevels& levels, const CacheOccupancy& at_start);

  void arrived(const RequestRecord& record, bool has_block_ids);
  void admitted(const RequestRecord& record, const SchedulerEvent& event, bool first_time);
  void preempted(const SchedulerEvent& event, std::int64_t at_ns);
  // `gap_ms`: since the request's tokens before, if there were any. Tokens of one step come together: one gap.
  void tokens(const SchedulerEvent& event, std::optional<double> gap_ms, std::int64_t at_ns);
  void ended(const RequestRecord& record);
  void step(const StepReport& report, std::int64_t begin_ns, std::int64_t end_ns);
  // After every change of the queue.
  void queue(const QueueState& queue);
  // Occupancy from begin to end, and the queue.
  void state(std::int64_t begin_ns, std::int64_t end_ns, const CacheOccupancy& occupancy, const QueueState& queue);

  [[nodiscard]] const RequestTotals& requests() const noexcept { return requests_; }
  [[nodiscard]] const StepTotals& steps() const noexcept { return steps_; }
  [[nodiscard]] const LatencyHistogram& ttft_ms() const noexcept { return ttft_ms_; }
  [[nodiscard]] const LatencyHistogram& tpot_ms() const noexcept { return tpot_ms_; }
  [[nodiscard]] const LatencyHistogram& itl_ms() const noexcept { return itl_ms_; }
  [[nodiscard]] const LatencyHistogram& e2el_ms() const noexcept { return e2el_ms_; }
  [[nodiscard]] const LatencyHistogram& queue_ms() const noexcept { return queue_ms_; }
  [[nodiscard]] const OccupancySeries& occupancy() const noexcept { return occupancy_; }
  [[nodiscard]] const EventSeries& events() const noexcept { return events_; }
  [[nodiscard]] const RequestGroups& groups() const noexcept { return groups_; }
  [[nodiscard]] const CacheOccupancy& latest() const noexcept { return latest_; }
  // Largest live blocks seen, in the order of CacheOccupancy::roles.
  [[nodiscard]] const std::vector<std::int64_t>& most_live_blocks() const noexcept { return most_live_; }
  // Finished requests with the longest times from arrival to end, longest first.
  [[nodiscard]] const std::vector<RequestRecord>& slowest() const noexcept { return slowest_; }

 private:
  RequestTotals requests_;
  StepTotals steps_;
  ServiceLevels levels_;
  LatencyHistogram ttft_ms_;
  LatencyHistogram tpot_ms_;
  LatencyHistogram itl_ms_;
  LatencyHistogram e2el_ms_;
  LatencyHistogram queue_ms_;
  OccupancySeries occupancy_;
  EventSeries events_;
  RequestGroups groups_;
  CacheOccupancy latest_;
  std::vector<std::int64_t> most_live_;
  std::vector<double> values_;  // one sample
  std::vector<RequestRecord> slowest_;
};

}  // namespace dsv4rt::replay
