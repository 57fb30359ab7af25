#include "replay/replay_run.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/numbered_threads.h"
#include "base/try.h"
#include "checkpoint/output_file.h"
#include "replay/length_scale.h"
#include "replay/replay_machine.h"
#include "replay/request_tokens.h"
#include "replay/request_writer.h"
#include "replay/timeline_writer.h"

namespace dsv4rt::replay {
namespace {

// A request between its arrival and its end.
struct Flight {
  Request request;
  RequestRecord record;
  std::size_t machine = 0;  // index of the one that serves it
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

  // The token ids of a prompt that is not in flight yet.
  void prompt(const Request& request, std::span<std::int32_t> ids) const { tokens_.token_ids(request, 0, ids); }

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

// Machines keep time of their own. What happens next is the earliest of the next arrival and the steps of those that
// have something to run; arrivals come first. A step happens at its beginning with all that it does: whoever is routed
// while it runs meets the queue behind it.
//
// With threads, machines take at the same time those steps that begin before the next arrival, where no arrival depends
// on their ends: nothing of one can change another. Their reports are looked at in the order of their beginnings, as
// without threads.
class ReplayRun {
 public:
  ReplayRun(std::vector<Machine> machines, std::unique_ptr<NumberedThreads> threads, const ReplayOptions& options,
            Arrivals arrivals)
      : machines_(std::move(machines)),
        threads_(std::move(threads)),
        options_(options),
        router_(options.route, options.scheduler.max_sequences),
        arrivals_(std::move(arrivals)),
        flights_(options.seed, options.acceptance) {}

  Result<RunSummary> run() {
    const auto begin = std::chrono::steady_clock::now();
    DSV4RT_RETURN_IF_ERROR(open());
    if (Status status = loop(); !status.ok()) {
      for (Machine& machine : machines_) {
        // The first failure is the one to tell.
        if (machine.scheduler) static_cast<void>(machine.scheduler->abort_all());
      }
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
                       .limits = machines_.front().executor.limits(),
                       .memory = machines_.front().executor.memory_plan(),
                       .prefixes = {},
                       .executor = {},
                       .outputs = outputs_,
                       .eviction = {},
                       .step_times = {},
                       .engine = machines_.front().executor.engine_origin(),
                       .stopped = stopped_};
    for (const Machine& machine : machines_) {
      add(summary.prefixes, machine.executor.prefix_stats());
      add(summary.executor, machine.executor.counts());
      if (machines_.size() > 1) summary.machines.push_back(machine.totals);
    }
    if (machines_.size() > 1) summary.route = options_.route;
    if (requests_) DSV4RT_RETURN_IF_ERROR(requests_->commit());
    if (timeline_) DSV4RT_RETURN_IF_ERROR(timeline_->commit());
    const std::chrono::duration<double, std::milli> wall = std::chrono::steady_clock::now() - begin;
    summary.wall_ms = wall.count();
    return summary;
  }

 private:
  Status open() {
    for (Machine& machine : machines_) {
      DSV4RT_ASSIGN_OR_RETURN(Scheduler scheduler, Scheduler::create(options_.scheduler, machine.executor, flights_));
      machine.scheduler.emplace(std::move(scheduler));
      machine.executor.occupancy(machine.occupancy);
    }
    sum_up();
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
      Machine* const next = next_machine();
      DSV4RT_ASSIGN_OR_RETURN(const std::optional<std::int64_t> arrival_ns, arrivals_.next_time_ns());
      if (arrival_ns && *arrival_ns <= (next != nullptr ? next->begin_ns() : idle_since_ns())) {
        DSV4RT_RETURN_IF_ERROR(arrive(arrivals_.take()));
        continue;
      }
      if (options_.stop && options_.stop()) return stop_here();
      if (next != nullptr) {
        if (!next->ahead) run_steps(*next, arrival_ns);
        DSV4RT_RETURN_IF_ERROR(look_at_step(*next));
        continue;
      }
      DSV4RT_RETURN_IF_ERROR(rest());
      if (!arrival_ns) return {};
      pass_time_to(*arrival_ns);
      for (Machine& machine : machines_) machine.clock.wait_until(*arrival_ns);
    }
  }

  // Of the machines that have something to run and are `eligible` the one whose step begins first; null: none is.
  template <class Eligible>
  Machine* next_machine(const Eligible& eligible) {
    Machine* next = nullptr;
    for (Machine& machine : machines_) {
      if (!machine.busy() || !eligible(machine)) continue;
      if (next == nullptr || machine.begin_ns() < next->begin_ns()) next = &machine;
    }
    return next;
  }
  Machine* next_machine() {
    return next_machine([](const Machine&) { return true; });
  }

  // Up to which time all machines have nothing to do.
  [[nodiscard]] std::int64_t idle_since_ns() const {
    std::int64_t least = machines_.front().clock.now_ns();
    for (const Machine& machine : machines_) least = std::min(least, machine.clock.now_ns());
    return least;
  }

  // ---- State over time

  // Occupancy and queues of all machines together.
  void sum_up() {
    occupancy_ = {};
    for (const Machine& machine : machines_) add(occupancy_, machine.occupancy);
    queue_ = queues();
  }

  [[nodiscard]] QueueState queues() const {
    QueueState sum;
    for (const Machine& machine : machines_) {
      sum.running += machine.queue.running;
      sum.waiting += machine.queue.waiting;
      sum.preempted += machine.queue.preempted;
    }
    return sum;
  }

  // What was last summed up lasts until then.
  void pass_time_to(std::int64_t ns) {
    if (ns <= state_since_ns_) return;
    metrics_->state(state_since_ns_, ns, occupancy_, queue_);
    state_since_ns_ = ns;
  }

  // No machine has anything to run.
  Status rest() {
    std::int64_t last_ns = 0;
    for (Machine& machine : machines_) {
      last_ns = std::max(last_ns, machine.clock.now_ns());
      machine.executor.occupancy(machine.occupancy);
    }
    pass_time_to(last_ns);
    sum_up();
    return timeline_ ? timeline_->counters(occupancy_, queue_, last_ns) : Status{};
  }

  // ---- Arrivals

  Machine& route(const Request& request) {
    if (machines_.size() == 1) return machines_.front();
    loads_.clear();
    if (router_.route() == Route::kPrefix) {
      prompt_.resize(static_cast<std::size_t>(std::max<std::int64_t>(request.input_tokens, 0)));
      flights_.prompt(request, prompt_);
    }
    for (const Machine& machine : machines_) {
      DSV4RT_CHECK(!machine.ahead);
      const bool ask = router_.route() == Route::kPrefix;
      loads_.push_back({.running = machine.scheduler->running(),
                        .waiting = machine.scheduler->waiting(),
                        .hit_tokens = ask ? machine.executor.cached_tokens(prompt_) : 0});
    }
    return machines_[router_.choose(loads_)];
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
    // A prompt that no machine takes is not made for the question where it is cached.
    const bool too_long = request.input_tokens > options_.scheduler.max_context_tokens;
    Machine& machine = lost || too_long ? machines_.front() : route(request);
    const auto index = static_cast<std::size_t>(&machine - machines_.data());
    const std::int64_t number = flights_.add({std::move(arrival.request), std::move(record), index});
    if (lost) {
      return end(number, RequestOutcome::kAborted, arrival.time_ns, "an earlier turn of its session got no answer");
    }
    SchedulerRequest numbered = submitted;
    numbered.id = number;
    machine.totals.requests += 1;
    if (!machine.busy()) machine.clock.wait_until(arrival.time_ns);
    const Status status = machine.scheduler->submit(numbered);
    machine.queue = machine.scheduler->queue();
    metrics_->queue(queues());
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
    Machine& machine = machines_[flight.machine];
    std::string digest = machine.executor.take_output_digest(number);
    if (outcome == RequestOutcome::kFinished && !digest.empty()) {
      flight.record.output_digest = std::move(digest);
      outputs_.add(flight.record);
    }
    metrics_->ended(flight.record);
    if (requests_) DSV4RT_RETURN_IF_ERROR(requests_->write(flight.record));
    if (timeline_) DSV4RT_RETURN_IF_ERROR(timeline_->request(flight.record));
    arrivals_.ended(flight.request, machine.clock.now_ns(), outcome == RequestOutcome::kFinished);
    flights_.remove(number);
    return {};
  }

  // ---- Steps

  // Of `next`, and with threads of all others that nothing can come before.
  void run_steps(Machine& next, std::optional<std::int64_t> arrival_ns) {
    if (threads_ == nullptr || arrivals_.depend_on_ends()) return next.run_ahead();
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      Machine& machine = machines_[i];
      if (!machine.busy() || machine.ahead || (arrival_ns && machine.begin_ns() >= *arrival_ns)) continue;
      threads_->start(i, [&machine] { machine.run_ahead(); });
    }
    threads_->wait();
  }

  Status look_at_step(Machine& machine) {
    const std::int64_t begin_ns = machine.begin_ns();
    pass_time_to(begin_ns);
    const Result<StepReport> ran = *std::exchange(machine.ahead, std::nullopt);
    machine.queue = machine.scheduler->queue();
    DSV4RT_ASSIGN_OR_RETURN(const StepReport report, ran);
    const std::int64_t end_ns = machine.clock.now_ns();
    if (!report.ran && report.events.empty()) {
      return {StatusCode::kInternal,
              "replay: " + std::to_string(machine.scheduler->waiting()) + " requests wait and none can be run"};
    }
    for (std::size_t i = 0; i < report.events.size(); ++i) {
      DSV4RT_RETURN_IF_ERROR(handle(report.events[i], i < report.events_before ? begin_ns : end_ns));
    }
    metrics_->step(report, begin_ns, end_ns);
    machine.totals.busy_ns += end_ns - begin_ns;
    machine.totals.steps += report.ran ? 1 : 0;
    if (report.ran) machine.occupancy = machine.executor.step_occupancy();
    sum_up();
    metrics_->queue(queue_);
    if (report.ran && timeline_) {
      const auto index = static_cast<std::size_t>(&machine - machines_.data());
      DSV4RT_RETURN_IF_ERROR(timeline_->step(report, begin_ns, end_ns, index));
      DSV4RT_RETURN_IF_ERROR(timeline_->counters(occupancy_, queue_, begin_ns));
    }
    const std::int64_t steps = metrics_->steps().steps;
    if (steps % options_.progress_steps == 0) report_progress();
    if (options_.check_every_steps > 0 && steps % options_.check_every_steps == 0) return machine.executor.check();
    return {};
  }

  Status handle(const SchedulerEvent& event, std::int64_t at_ns) {
    Flight& flight = flights_.at(event.request);
    RequestRecord& record = flight.record;
    switch (event.kind) {
      case SchedulerEvent::Kind::kAdmitted: {
        const bool first_time = !record.was_admitted();
        if (first_time) {
          record.admitted_ns = at_ns;
          record.hit_tokens = event.hit_tokens;
          machines_[flight.machine].totals.hit_tokens += event.hit_tokens;
          machines_[flight.machine].totals.admitted_input_tokens += record.input_tokens;
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
    // Steps that ran ahead have happened; nothing else has that begins before the last of them.
    const auto ahead = [](const Machine& machine) { return machine.ahead.has_value(); };
    for (Machine* next = next_machine(ahead); next != nullptr; next = next_machine(ahead)) {
      DSV4RT_RETURN_IF_ERROR(look_at_step(*next));
    }
    for (Machine& machine : machines_) {
      DSV4RT_ASSIGN_OR_RETURN(const std::span<const SchedulerEvent> events, machine.scheduler->abort_all());
      machine.queue = machine.scheduler->queue();
      for (const SchedulerEvent& event : events) DSV4RT_RETURN_IF_ERROR(handle(event, machine.clock.now_ns()));
    }
    return rest();
  }

  void report_progress() {
    if (!options_.on_progress) return;
    ReplayProgress progress{.requests = metrics_->requests(),
                            .now_ns = now_ns(),
                            .steps = metrics_->steps().steps,
                            .running = queue_.running,
                            .waiting = queue_.waiting + queue_.preempted};
    for (const RoleOccupancy& role : occupancy_.roles) {
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
    for (Machine& machine : machines_) machine.executor.occupancy(machine.occupancy);
    sum_up();
    metrics_->state(now_ns(), now_ns(), occupancy_, queue_);
    for (const RoleOccupancy& role : occupancy_.roles) {
      if (role.live_blocks == 0 && role.reserved_blocks == 0) continue;
      return {StatusCode::kInternal, "replay: " + std::to_string(role.live_blocks) + " blocks are live and " +
                                         std::to_string(role.reserved_blocks) + " reserved after the last request"};
    }
    if (occupancy_.live_sequences != 0) {
      return {StatusCode::kInternal,
              "replay: " + std::to_string(occupancy_.live_sequences) + " sequences live after the last request"};
    }
    for (const Machine& machine : machines_) DSV4RT_RETURN_IF_ERROR(machine.executor.check());
    return {};
  }

  // The end of the latest step of any machine.
  [[nodiscard]] std::int64_t now_ns() const {
    std::int64_t latest = 0;
    for (const Machine& machine : machines_) latest = std::max(latest, machine.clock.now_ns());
    return latest;
  }

  std::vector<Machine> machines_;
  std::unique_ptr<NumberedThreads> threads_;  // null: machines take turns
  const ReplayOptions& options_;
  Router router_;
  Arrivals arrivals_;
  Flights flights_;
  std::optional<RunMetrics> metrics_;
  std::optional<RequestWriter> requests_;
  std::optional<TimelineWriter> timeline_;
  CacheOccupancy occupancy_;  // all machines together, as queue_ is, since state_since_ns_
  QueueState queue_;
  std::int64_t state_since_ns_ = 0;
  std::vector<MachineLoad> loads_;
  std::vector<std::int32_t> prompt_;
  OutputDigest outputs_;
  bool stopped_ = false;
};

Status machines_refused(std::int64_t machines) {
  return {StatusCode::kInvalidArgument,
          "machines = " + std::to_string(machines) + "; accepted: 1 to " + std::to_string(kMaxMachines)};
}

Status write_texts(const RunSummary& summary, const ReplayOptions& options) {
  if (!options.metrics_file.empty()) {
    DSV4RT_RETURN_IF_ERROR(write_text_file(options.metrics_file, prometheus_text(summary)));
  }
  return options.summary_file.empty() ? Status{} : write_text_file(options.summary_file, summary_json(summary));
}

Result<RunSummary> replay(RequestSupply supply, std::vector<Machine> machines, std::unique_ptr<NumberedThreads> threads,
                          const ReplayOptions& options) {
  DSV4RT_RETURN_IF_ERROR(check_options(options));
  ArrivalOptions arrival_options = options.arrivals;
  arrival_options.seed = options.seed;
  DSV4RT_ASSIGN_OR_RETURN(supply, scaled_supply(std::move(supply), options.length_scale));
  DSV4RT_ASSIGN_OR_RETURN(Arrivals arrivals, Arrivals::create(std::move(supply), arrival_options));
  return ReplayRun(std::move(machines), std::move(threads), options, std::move(arrivals)).run();
}

}  // namespace

Result<RunSummary> replay_requests(RequestSupply supply, std::span<const ReplayMachine> given,
                                   const ReplayOptions& options) {
  if (given.empty() || given.size() > kMaxMachines) return machines_refused(static_cast<std::int64_t>(given.size()));
  std::vector<Machine> machines;
  for (const ReplayMachine& machine : given) machines.emplace_back(machine.executor, machine.clock);
  std::unique_ptr<NumberedThreads> threads;
  if (machines.size() > 1) {
    DSV4RT_ASSIGN_OR_RETURN(threads, NumberedThreads::create(machines.size()));
  }
  DSV4RT_ASSIGN_OR_RETURN(RunSummary summary,
                          replay(std::move(supply), std::move(machines), std::move(threads), options));
  summary.mode = "real";
  DSV4RT_RETURN_IF_ERROR(write_texts(summary, options));
  return summary;
}

Result<RunSummary> replay_requests(RequestSupply supply, ReplayExecutor& executor, Clock& clock,
                                   const ReplayOptions& options) {
  const ReplayMachine machine{.executor = executor, .clock = clock};
  return replay_requests(std::move(supply), {&machine, 1}, options);
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
  if (options.machines < 1 || options.machines > kMaxMachines) return machines_refused(options.machines);
  DSV4RT_ASSIGN_OR_RETURN(const StepTimeModel times, StepTimeModel::create(options.table, options.experts));
  std::deque<VirtualClock> clocks;
  std::vector<std::unique_ptr<ModelExecutor>> executors;
  std::vector<Machine> machines;
  for (std::int32_t i = 0; i < options.machines; ++i) {
    VirtualClock& clock = clocks.emplace_back();
    DSV4RT_ASSIGN_OR_RETURN(auto executor, ModelExecutor::create(options.config, cache, times, clock));
    machines.emplace_back(*executors.emplace_back(std::move(executor)), clock);
  }
  DSV4RT_ASSIGN_OR_RETURN(RunSummary summary, replay(std::move(supply), std::move(machines), nullptr, replay_options));
  summary.mode = "model";
  summary.eviction = cache.eviction;
  summary.step_times = StepTimeOrigin{
      .provenance = options.table.provenance, .points = options.table.points.size(), .experts = options.experts};
  DSV4RT_RETURN_IF_ERROR(write_texts(summary, replay_options));
  return summary;
}

}  // namespace dsv4rt::replay
