#include "replay/replay_run.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/try.h"
#include "checkpoint/output_file.h"
#include "replay/length_scale.h"
#include "replay/request_tokens.h"
#include "replay/request_writer.h"
#include "replay/timeline_writer.h"

namespace dsv4rt::replay {
namespace {

// A request between its arrival and its end.
struct Flight {
  Request request;
  RequestRecord record;
};

// Requests in flight by the number that the scheduler knows them by, which no two requests of a run share.
class Flights : public RequestContent {
 public:
  Flights(std::uint64_t seed, double acceptance) : tokens_(seed), acceptance_(acceptance) {}

  std::int64_t add(Flight flight) {
    flights_.emplace(next_, std::move(flight));
    return next_++;
  }
  [[nodiscard]] Flight& at(std::int64_t number) { return flights_.at(number); }
  void remove(std::int64_t number) { flights_.erase(number); }
  [[nodiscard]] bool empty() const noexcept { return flights_.empty(); }

  void token_ids(std::int64_t request, std::int64_t first, std::span<std::int32_t> ids) const override {
    tokens_.token_ids(flights_.at(request).request, first, ids);
  }
  std::int32_t draft(std::int64_t request, std::int64_t first, std::span<std::int32_t> ids) const override {
    return tokens_.draft(flights_.at(request).request, first, acceptance_, ids);
  }

 private:
  RequestTokens tokens_;
  double acceptance_;
  std::unordered_map<std::int64_t, Flight> flights_;
  std::int64_t next_ = 0;
};

Status check_options(const ReplayOptions& options) {
  if (!(options.acceptance >= 0 && options.acceptance <= 1)) {
    return {StatusCode::kInvalidArgument, "acceptance = " + std::to_string(options.acceptance) + "; accepted: 0 to 1"};
  }
  if (options.progress_steps < 1 || options.check_every_steps < 0) {
    return {StatusCode::kInvalidArgument, "progress_steps = " + std::to_string(options.progress_steps) +
                                              ", check_every_steps = " + std::to_string(options.check_every_steps) +
                                              "; accepted: 1 or more, 0 or more"};
  }
  // Clients of a closed loop that are refused come back at once: the queue must have a place for each.
  if (options.arrivals.mode == ArrivalMode::kClosedLoop &&
      options.arrivals.concurrency > options.scheduler.max_waiting) {
    return {StatusCode::kInvalidArgument, "concurrency = " + std::to_string(options.arrivals.concurrency) +
                                              "; accepted: up to " + std::to_string(options.scheduler.max_waiting) +
                                              " (max_waiting)"};
  }
  return {};
}

class ReplayRun {
 public:
  ReplayRun(ReplayExecutor& executor, Clock& clock, const ReplayOptions& options, Arrivals arrivals)
      : executor_(executor),
        clock_(clock),
        options_(options),
        arrivals_(std::move(arrivals)),
        flights_(options.seed, options.acceptance) {}

  Result<RunSummary> run() {
    const auto begin = std::chrono::steady_clock::now();
    DSV4RT_RETURN_IF_ERROR(open());
    if (Status status = loop(); !status.ok()) {
      static_cast<void>(scheduler_->abort_all());  // the first failure is the one to tell
      return status;
    }
    report_progress();
    DSV4RT_RETURN_IF_ERROR(check_totals());
    RunSummary summary{.mode = "",
                       .scheduler = options_.scheduler,
                       .arrivals = options_.arrivals,
                       .acceptance = options_.acceptance,
                       .length_scale = options_.length_scale,
                       .seed = options_.seed,
                       .service_levels = options_.service_levels,
                       .metrics = std::move(*metrics_),
                       .limits = executor_.limits(),
                       .memory = executor_.memory_plan(),
                       .prefixes = executor_.prefix_stats(),
                       .executor = executor_.counts(),
                       .outputs = outputs_,
                       .eviction = {},
                       .step_times = {},
                       .engine = executor_.engine_origin(),
                       .stopped = stopped_};
    if (requests_) DSV4RT_RETURN_IF_ERROR(requests_->commit());
    if (timeline_) DSV4RT_RETURN_IF_ERROR(timeline_->commit());
    const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - begin;
    summary.wall_ms = wall.count();
    return summary;
  }

 private:
  Status open() {
    DSV4RT_ASSIGN_OR_RETURN(Scheduler scheduler, Scheduler::create(options_.scheduler, executor_, flights_));
    scheduler_.emplace(std::move(scheduler));
    executor_.occupancy(occupancy_);
    metrics_.emplace(options_.service_levels, occupancy_);
    if (!options_.requests_file.empty()) {
      DSV4RT_ASSIGN_OR_RETURN(RequestWriter writer, RequestWriter::create(options_.requests_file));
      requests_.emplace(std::move(writer));
    }
    if (!options_.timeline_file.empty()) {
      DSV4RT_ASSIGN_OR_RETURN(TimelineWriter writer,
                              TimelineWriter::create(options_.timeline_file, options_.timeline_max_events));
      timeline_.emplace(std::move(writer));
    }
    return {};
  }

  Status loop() {
    for (;;) {
      DSV4RT_ASSIGN_OR_RETURN(const std::optional<std::int64_t> next_ns, let_arrive());
      if (options_.stop && options_.stop()) return stop_here();
      if (!scheduler_->idle()) {
        DSV4RT_RETURN_IF_ERROR(step());
      } else if (next_ns) {
        const std::int64_t begin_ns = clock_.now_ns();
        clock_.wait_until(*next_ns);
        executor_.occupancy(occupancy_);
        metrics_->state(begin_ns, clock_.now_ns(), occupancy_, *scheduler_);
        if (timeline_) DSV4RT_RETURN_IF_ERROR(timeline_->counters(occupancy_, *scheduler_, begin_ns));
      } else {
        executor_.occupancy(occupancy_);
        if (timeline_) DSV4RT_RETURN_IF_ERROR(timeline_->counters(occupancy_, *scheduler_, clock_.now_ns()));
        return {};
      }
    }
  }

  // ---- Arrivals

  // Submits whatever is due; the time of the next arrival after that.
  Result<std::optional<std::int64_t>> let_arrive() {
    for (;;) {
      DSV4RT_ASSIGN_OR_RETURN(const std::optional<std::int64_t> next_ns, arrivals_.next_time_ns());
      if (!next_ns || *next_ns > clock_.now_ns()) return next_ns;
      DSV4RT_RETURN_IF_ERROR(arrive(arrivals_.take()));
    }
  }

  Status arrive(Arrival arrival) {
    const Request& request = arrival.request;
    RequestRecord record{.index = request.index,
                         .line = request.line,
                         .id = request.id,
                         .session = request.session,
                         .input_tokens = request.input_tokens,
                         .asked_output_tokens = request.output_tokens,
                         .error = {},
                         .arrival_ns = arrival.time_ns};
    metrics_->arrived(record, !request.block_ids.empty());
    const SchedulerRequest submitted{.input_tokens = request.input_tokens,
                                     .output_tokens = request.output_tokens,
                                     .priority = request.priority,
                                     .arrival_ns = arrival.time_ns};
    const bool lost = arrival.lost;
    const std::int64_t number = flights_.add({std::move(arrival.request), std::move(record)});
    if (lost) {
      return end(number, RequestOutcome::kAborted, arrival.time_ns, "an earlier turn of its session got no answer");
    }
    SchedulerRequest numbered = submitted;
    numbered.id = number;
    const Status status = scheduler_->submit(numbered);
    metrics_->queue(*scheduler_);
    if (status.ok()) return {};
    RequestRecord& rejected = flights_.at(number).record;
    rejected.reason = status.code() == StatusCode::kResourceExhausted                 ? RejectReason::kQueueFull
                      : rejected.input_tokens < 1 || rejected.asked_output_tokens < 0 ? RejectReason::kNoTokens
                                                                                      : RejectReason::kTooLong;
    return end(number, RequestOutcome::kRejected, arrival.time_ns, status.message());
  }

  Status end(std::int64_t number, RequestOutcome outcome, std::int64_t at_ns, std::string error) {
    Flight& flight = flights_.at(number);
    flight.record.outcome = outcome;
    flight.record.end_ns = at_ns;
    flight.record.error = std::move(error);
    std::string digest = executor_.take_output_digest(number);
    if (outcome == RequestOutcome::kFinished && !digest.empty()) {
      flight.record.output_digest = std::move(digest);
      outputs_.add(flight.record);
    }
    metrics_->ended(flight.record);
    if (requests_) DSV4RT_RETURN_IF_ERROR(requests_->write(flight.record));
    if (timeline_) DSV4RT_RETURN_IF_ERROR(timeline_->request(flight.record));
    arrivals_.ended(flight.request, clock_.now_ns(), outcome == RequestOutcome::kFinished);
    flights_.remove(number);
    return {};
  }

  // ---- Steps

  Status step() {
    const std::int64_t begin_ns = clock_.now_ns();
    DSV4RT_ASSIGN_OR_RETURN(const StepReport report, scheduler_->step());
    const std::int64_t end_ns = clock_.now_ns();
    if (!report.ran && report.events.empty()) {
      return {StatusCode::kInternal,
              "replay: " + std::to_string(scheduler_->waiting()) + " requests wait and none can be run"};
    }
    for (std::size_t i = 0; i < report.events.size(); ++i) {
      DSV4RT_RETURN_IF_ERROR(handle(report.events[i], i < report.events_before ? begin_ns : end_ns));
    }
    metrics_->queue(*scheduler_);
    metrics_->step(report, begin_ns, end_ns);
    if (report.ran) {
      metrics_->state(begin_ns, end_ns, executor_.step_occupancy(), *scheduler_);
      if (timeline_) {
        DSV4RT_RETURN_IF_ERROR(timeline_->step(report, begin_ns, end_ns));
        DSV4RT_RETURN_IF_ERROR(timeline_->counters(executor_.step_occupancy(), *scheduler_, begin_ns));
      }
    }
    const std::int64_t steps = metrics_->steps().steps;
    if (steps % options_.progress_steps == 0) report_progress();
    if (options_.check_every_steps > 0 && steps % options_.check_every_steps == 0) return executor_.check();
    return {};
  }

  Status handle(const SchedulerEvent& event, std::int64_t at_ns) {
    RequestRecord& record = flights_.at(event.request).record;
    switch (event.kind) {
      case SchedulerEvent::Kind::kAdmitted: {
        const bool first_time = !record.was_admitted();
        if (first_time) {
          record.admitted_ns = at_ns;
          record.hit_tokens = event.hit_tokens;
        } else {
          record.resumed_ns = at_ns;
        }
        record.recomputed_tokens += event.recomputed_tokens;
        metrics_->admitted(record, event, first_time);
        return {};
      }
      case SchedulerEvent::Kind::kTokens: {
        std::optional<double> gap_ms;
        if (record.has_ttft()) gap_ms = to_ms(at_ns - record.last_token_ns);
        if (!record.has_ttft()) record.first_token_ns = at_ns;
        record.last_token_ns = at_ns;
        record.output_tokens += event.output_tokens;
        metrics_->tokens(event, gap_ms, at_ns);
        return {};
      }
      case SchedulerEvent::Kind::kPreempted:
        record.preempted_ns = at_ns;
        record.preemptions += 1;
        metrics_->preempted(event, at_ns);
        return {};
      case SchedulerEvent::Kind::kFinished:
        return end(event.request, RequestOutcome::kFinished, at_ns, {});
      case SchedulerEvent::Kind::kAborted:
        return end(event.request, RequestOutcome::kAborted, at_ns, "the replay was stopped");
    }
    return {};
  }

  Status stop_here() {
    stopped_ = true;
    DSV4RT_ASSIGN_OR_RETURN(const std::span<const SchedulerEvent> events, scheduler_->abort_all());
    for (const SchedulerEvent& event : events) DSV4RT_RETURN_IF_ERROR(handle(event, clock_.now_ns()));
    return {};
  }

  void report_progress() {
    if (!options_.on_progress) return;
    ReplayProgress progress{.requests = metrics_->requests(),
                            .now_ns = clock_.now_ns(),
                            .steps = metrics_->steps().steps,
                            .running = scheduler_->running(),
                            .waiting = scheduler_->waiting()};
    for (const RoleOccupancy& role : executor_.step_occupancy().roles) {
      const double share = static_cast<double>(role.live_blocks) / static_cast<double>(role.total_blocks);
      progress.most_used_share = std::max(progress.most_used_share, share);
    }
    options_.on_progress(progress);
  }

  // ---- The end

  Status check_totals() {
    const RequestTotals& totals = metrics_->requests();
    if (totals.arrived != totals.finished + totals.rejected + totals.aborted || !flights_.empty()) {
      return {StatusCode::kInternal, "replay: " + std::to_string(totals.arrived) + " requests arrived, " +
                                         std::to_string(totals.finished) + " finished, " +
                                         std::to_string(totals.rejected) + " were rejected and " +
                                         std::to_string(totals.aborted) + " aborted"};
    }
    executor_.occupancy(occupancy_);
    const std::int64_t now_ns = clock_.now_ns();
    metrics_->state(now_ns, now_ns, occupancy_, *scheduler_);
    for (const RoleOccupancy& role : occupancy_.roles) {
      if (role.live_blocks == 0 && role.reserved_blocks == 0) continue;
      return {StatusCode::kInternal, "replay: " + std::to_string(role.live_blocks) + " blocks are live and " +
                                         std::to_string(role.reserved_blocks) + " reserved after the last request"};
    }
    if (occupancy_.live_sequences != 0) {
      return {StatusCode::kInternal,
              "replay: " + std::to_string(occupancy_.live_sequences) + " sequences live after the last request"};
    }
    return executor_.check();
  }

  ReplayExecutor& executor_;
  Clock& clock_;
  const ReplayOptions& options_;
  Arrivals arrivals_;
  Flights flights_;
  std::optional<Scheduler> scheduler_;
  std::optional<RunMetrics> metrics_;
  std::optional<RequestWriter> requests_;
  std::optional<TimelineWriter> timeline_;
  CacheOccupancy occupancy_;
  OutputDigest outputs_;
  bool stopped_ = false;
};

Status write_texts(const RunSummary& summary, const ReplayOptions& options) {
  if (!options.metrics_file.empty()) {
    DSV4RT_RETURN_IF_ERROR(write_text_file(options.metrics_file, prometheus_text(summary)));
  }
  return options.summary_file.empty() ? Status{} : write_text_file(options.summary_file, summary_json(summary));
}

Result<RunSummary> replay(RequestSupply supply, ReplayExecutor& executor, Clock& clock, const ReplayOptions& options) {
  DSV4RT_RETURN_IF_ERROR(check_options(options));
  ArrivalOptions arrival_options = options.arrivals;
  arrival_options.seed = options.seed;
  DSV4RT_ASSIGN_OR_RETURN(supply, scaled_supply(std::move(supply), options.length_scale));
  DSV4RT_ASSIGN_OR_RETURN(Arrivals arrivals, Arrivals::create(std::move(supply), arrival_options));
  return ReplayRun(executor, clock, options, std::move(arrivals)).run();
}

}  // namespace

Result<RunSummary> replay_requests(RequestSupply supply, ReplayExecutor& executor, Clock& clock,
                                   const ReplayOptions& options) {
  DSV4RT_ASSIGN_OR_RETURN(RunSummary summary, replay(std::move(supply), executor, clock, options));
  summary.mode = "real";
  DSV4RT_RETURN_IF_ERROR(write_texts(summary, options));
  return summary;
}

Status adopt_limits(SchedulerOptions& scheduler, const CacheLimits& cache) {
  if (scheduler.max_context_tokens == 0) scheduler.max_context_tokens = cache.max_context_tokens;
  if (scheduler.step_tokens == 0) scheduler.step_tokens = cache.max_step_tokens;
  if (scheduler.max_sequences == 0) scheduler.max_sequences = cache.max_sequences;
  if (scheduler.max_context_tokens <= cache.max_context_tokens && scheduler.step_tokens <= cache.max_step_tokens &&
      scheduler.max_sequences <= cache.max_sequences) {
    return {};
  }
  return {StatusCode::kInvalidArgument,
          "scheduler: limits of sequences, context and step tokens beyond those of the cache"};
}

Result<RunSummary> run_model(RequestSupply supply, const ModelReplayOptions& options) {
  ReplayOptions replay_options = options.replay;
  ModelExecutorOptions cache = options.cache;
  DSV4RT_RETURN_IF_ERROR(adopt_limits(replay_options.scheduler, cache.limits));
  cache.formats.draft_budget_tokens =
      std::max(cache.formats.draft_budget_tokens, replay_options.scheduler.draft_tokens);
  VirtualClock clock;
  DSV4RT_ASSIGN_OR_RETURN(const StepTimeModel times, StepTimeModel::create(options.table, options.experts));
  DSV4RT_ASSIGN_OR_RETURN(const std::unique_ptr<ModelExecutor> executor,
                          ModelExecutor::create(options.config, cache, times, clock));
  DSV4RT_ASSIGN_OR_RETURN(RunSummary summary, replay(std::move(supply), *executor, clock, replay_options));
  summary.mode = "model";
  summary.eviction = cache.eviction;
  summary.step_times = StepTimeOrigin{
      .provenance = options.table.provenance, .points = options.table.points.size(), .experts = options.experts};
  DSV4RT_RETURN_IF_ERROR(write_texts(summary, replay_options));
  return summary;
}

}  // namespace dsv4rt::replay
