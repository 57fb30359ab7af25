#include "replay_model.h"

#include <iostream>
#include <vector>

#include "base/message_text.h"
#include "base/try.h"
#include "byte_size.h"
#include "cache/memory_plan.h"
#include "outputs.h"
#include "replay/replay_run.h"
#include "replay_sweep.h"
#include "stop_on_interrupt.h"
#include "text_table.h"

namespace dsv4rt::cli {
namespace {

using replay::ArrivalMode;
using replay::LatencyHistogram;
using replay::ModelReplayOptions;
using replay::RunSummary;
using Json = nlohmann::ordered_json;

Status set_arrivals(const ReplayModelFlags& flags, const replay::SourceInfo& log, replay::ArrivalOptions& arrivals) {
  if (flags.rate > 0 && flags.concurrency > 0) return refused("--rate and --concurrency: accepted: one of them");
  if (flags.rate > 0) {
    arrivals.mode = ArrivalMode::kRate;
    arrivals.rate_per_s = flags.rate;
  } else if (flags.concurrency > 0) {
    arrivals.mode = ArrivalMode::kClosedLoop;
    arrivals.concurrency = flags.concurrency;
  } else if (!log.arrival_times) {
    return refused("the log has no arrival times; accepted with it: --rate or --concurrency");
  }
  arrivals.speed = flags.speed;
  arrivals.jitter_ms = flags.jitter_ms;
  return {};
}

// The most tokens of which the whole cache takes at most --pool.
Result<std::int64_t> tokens_of_pool(const ModelReplayOptions& options, const std::string& pool) {
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t bytes, parse_byte_size("--pool", pool));
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(options.config));
  DSV4RT_ASSIGN_OR_RETURN(const CacheLayout layout,
                          CacheLayout::create(options.config, schedule, options.cache.formats));
  DSV4RT_ASSIGN_OR_RETURN(const MemoryPlan plan,
                          fit_memory(options.config, schedule, layout, options.cache.limits, bytes, 0));
  return plan.limits.pool_tokens;
}

Result<ModelReplayOptions> model_options(const LogFlags& log, const ReplayModelFlags& flags,
                                         const replay::SourceInfo& info) {
  if (flags.config.empty()) return refused("--execute model: --config FILE is needed, the config.json of the model");
  if (flags.step_table.empty()) {
    return refused(
        "--execute model: --step-table FILE is needed: what steps take on the machine, as written by "
        "dsv4rt bench --step-table; configs/step-table-h200.json is one");
  }
  ModelReplayOptions options;
  DSV4RT_ASSIGN_OR_RETURN(options.config, ModelConfig::from_file(flags.config));
  DSV4RT_ASSIGN_OR_RETURN(options.table, replay::StepTable::from_file(flags.step_table));
  options.experts = {.us_per_step = flags.moe_us_per_step, .us_per_token = flags.moe_us_per_token};
  DSV4RT_ASSIGN_OR_RETURN(options.cache.limits, flags.limits());
  options.cache.prefixes.interval_tokens = flags.prefix_interval;
  DSV4RT_ASSIGN_OR_RETURN(options.cache.eviction, parse_eviction(flags.policy));
  options.cache.formats.draft_budget_tokens = flags.draft;
  DSV4RT_ASSIGN_OR_RETURN(options.cache.snapshot_bytes, parse_byte_size("--snapshot-memory", flags.snapshot_memory));
  if (!flags.pool.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(options.cache.limits.pool_tokens, tokens_of_pool(options, flags.pool));
  }
  DSV4RT_ASSIGN_OR_RETURN(options.replay, serving_options(log, flags, info));
  options.machines = flags.machines;
  DSV4RT_ASSIGN_OR_RETURN(options.replay.route, replay::route_from_name(flags.route));
  return options;
}

}  // namespace

Result<CacheLimits> ReplayModelFlags::limits() const {
  CacheLimits limits{.max_sequences = max_sequences, .max_step_tokens = step_tokens, .boundary_states = prefix_states};
  DSV4RT_ASSIGN_OR_RETURN(limits.pool_tokens, parse_token_count("--pool-tokens", pool_tokens));
  DSV4RT_ASSIGN_OR_RETURN(limits.max_context_tokens, parse_token_count("--max-context", max_context));
  return limits;
}

Result<replay::ReplayOptions> serving_options(const LogFlags& log, const ReplayModelFlags& flags,
                                              const replay::SourceInfo& info) {
  replay::ReplayOptions run;
  run.scheduler.max_waiting = flags.max_waiting;
  run.scheduler.draft_tokens = flags.draft;
  run.scheduler.max_sequences = flags.max_sequences;
  run.scheduler.reservation = flags.reserve == "prompt" ? replay::Reservation::kPrompt : replay::Reservation::kWhole;
  run.scheduler.preemption =
      flags.preempt == "snapshot" ? replay::Preemption::kSnapshot : replay::Preemption::kRecompute;
  DSV4RT_RETURN_IF_ERROR(set_arrivals(flags, info, run.arrivals));
  run.arrivals.limit = std::max<std::int64_t>(log.limit, 0);
  run.acceptance = flags.accept;
  run.length_scale = flags.scale_lengths;
  run.seed = flags.seed;
  if (!flags.slo.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(run.service_levels, replay::ServiceLevels::parse(flags.slo));
  }
  run.requests_file = flags.requests;
  run.timeline_file = flags.timeline;
  run.metrics_file = flags.metrics;
  run.stop = [] { return StopOnInterrupt::interrupted(); };
  return run;
}

namespace {

void print_memory(const RunSummary& run) {
  std::cout << "memory: cache " << human_bytes(static_cast<double>(run.memory.total_bytes)) << " for "
            << run.memory.limits.pool_tokens << " tokens (";
  const char* separator = "";
  for (const PlannedRegion& region : run.memory.regions) {
    std::cout << separator << cache_role_name(region.role) << " "
              << human_bytes(static_cast<double>(region.total_bytes));
    separator = ", ";
  }
  std::cout << ")";
  if (run.engine) {
    std::cout << ", weights " << human_bytes(static_cast<double>(run.engine->weight_bytes)) << ", steps "
              << human_bytes(static_cast<double>(run.engine->workspace_bytes + run.engine->scratch_bytes));
  }
  std::cout << "\n";
}

void print_machines(const RunSummary& run) {
  if (!run.route) return;
  const double ms = run.duration_ms();
  TextTable table({"machine", "requests", "hit rate", "steps", "busy"});
  for (std::size_t i = 0; i < run.machines.size(); ++i) {
    const replay::MachineTotals& machine = run.machines[i];
    const auto admitted = static_cast<double>(machine.admitted_input_tokens);
    table.add_row({std::to_string(i), std::to_string(machine.requests),
                   admitted > 0 ? fixed(static_cast<double>(machine.hit_tokens) / admitted, 4) : "-",
                   std::to_string(machine.steps),
                   ms > 0 ? fixed(replay::to_ms(machine.busy_ns) / ms * 100, 1) + " %" : "-"});
  }
  std::cout << "routed " << replay::route_name(*run.route) << " to " << run.machines.size() << " machines\n"
            << table.to_string();
}

}  // namespace

Result<PrefixEviction> parse_eviction(const std::string& policy) {
  if (policy == "useful") return PrefixEviction::kUseful;
  if (policy == "lru") return PrefixEviction::kLru;
  if (policy == "belady") {
    return Status{
        StatusCode::kUnsupported,
        "--policy belady: it has to know what is asked for next, and when requests are served depends on what "
        "hits; accepted when serving: useful, lru; --execute none has belady"};
  }
  return refused("--policy: '" + printable(policy) + "'; accepted when serving: useful, lru");
}

void print_run(const RunSummary& run) {
  const replay::RequestTotals& totals = run.metrics.requests();
  const double seconds = run.duration_ms() / 1000;
  std::cout << "requests: " << totals.arrived << " arrived, " << totals.finished << " finished, " << totals.rejected
            << " rejected, " << totals.aborted << " aborted" << (run.stopped ? " (stopped)" : "") << "\n";
  if (seconds > 0) {
    std::cout << "in " << fixed(seconds, 1) << (run.mode == "real" ? " s of measured time: " : " s of modelled time: ")
              << fixed(static_cast<double>(totals.input_tokens) / seconds, 0) << " prompt and "
              << fixed(static_cast<double>(totals.output_tokens) / seconds, 0) << " output tokens a second\n";
  }
  if (totals.with_block_ids == 0) {
    std::cout << "prefix identity: none, so nothing is known about hits\n";
  } else if (totals.admitted_input_tokens > 0) {
    std::cout << "prefix cache: " << totals.hit_tokens << " of " << totals.admitted_input_tokens
              << " admitted prompt tokens hit ("
              << fixed(static_cast<double>(totals.hit_tokens) / static_cast<double>(totals.admitted_input_tokens), 4)
              << ")\n";
  }
  std::cout << "preemptions: " << totals.preemptions << ", tokens recomputed: " << totals.recomputed_tokens << "\n";
  if (run.service_levels.any() && totals.finished > 0) {
    std::cout << "kept the service levels: " << totals.kept_service_levels << " of " << totals.finished << "\n";
  }
  const replay::StepTotals& steps = run.metrics.steps();
  std::cout << "steps: " << steps.steps << ", busy " << fixed(static_cast<double>(steps.busy_ns) / 1e9, 1) << " s";
  if (run.executor.extrapolated_steps) {
    std::cout << ", " << *run.executor.extrapolated_steps << " of them beyond what the step table measured";
  }
  if (run.executor.captured_steps) std::cout << ", " << *run.executor.captured_steps << " of them captured";
  std::cout << "\n";
  print_machines(run);
  print_memory(run);
  if (run.outputs.requests() > 0) {
    std::cout << "outputs of " << run.outputs.requests() << " requests: sha256 " << run.outputs.hex() << "\n";
  }
  TextTable table({"ms", "mean", "p50", "p90", "p95", "p99", "max"});
  const auto add = [&](const char* name, const LatencyHistogram& times) {
    if (times.count() == 0) return;
    std::vector<std::string> row{name, fixed(times.mean(), 2)};
    for (const double percent : {50.0, 90.0, 95.0, 99.0}) row.push_back(fixed(times.percentile(percent), 2));
    row.push_back(fixed(times.greatest(), 2));
    table.add_row(std::move(row));
  };
  add("TTFT", run.metrics.ttft_ms());
  add("TPOT", run.metrics.tpot_ms());
  add("ITL", run.metrics.itl_ms());
  add("end to end", run.metrics.e2el_ms());
  add("in the queue", run.metrics.queue_ms());
  std::cout << table.to_string();
}

void ReplayModelFlags::add_to(CLI::App& command) {
  command.add_option("--config", config, "model: config.json of the model");
  command.add_option("--step-table", step_table, "model: step times of the machine, e.g. configs/step-table-h200.json");
  command.add_option("--pool", pool,
                     "model: memory of the whole cache instead of --pool-tokens, e.g. 40GiB: as many tokens as fit");
  command.add_option("--max-sequences", max_sequences, "model: sequences that run at a time")->capture_default_str();
  command.add_option("--max-context", max_context, "model: tokens of one sequence")->capture_default_str();
  command.add_option("--step-tokens", step_tokens, "model: tokens of one step")->capture_default_str();
  command.add_option("--max-waiting", max_waiting, "model: requests that may wait; more are rejected")
      ->capture_default_str();
  command.add_option("--prefix-states", prefix_states, "model: boundary states of the prefix cache; 0: none")
      ->capture_default_str();
  command
      .add_option("--prefix-interval", prefix_interval, "model: tokens between boundary states; 0: only at the ends")
      ->capture_default_str();
  command.add_option("--speed", speed, "model: time stamps divided by this")->capture_default_str();
  command.add_option("--rate", rate, "model: requests a second instead of time stamps");
  command.add_option("--concurrency", concurrency, "model: clients of a closed loop instead of time stamps");
  command.add_option("--jitter", jitter_ms, "model: arrivals move by up to so many ms, seeded");
  command
      .add_option("--scale-lengths", scale_lengths,
                  "model: lengths times this (up to 1), prefix blocks alike; whole tokens of a block")
      ->capture_default_str();
  command.add_option("--slo", slo, "model: service levels in ms, e.g. ttft:200,tpot:50");
  command.add_option("--reserve", reserve, "model: blocks set aside at admission: whole, or for the prompt")
      ->check(CLI::IsMember({"whole", "prompt"}))
      ->capture_default_str();
  command.add_option("--preempt", preempt, "model: what becomes of a preempted sequence")
      ->check(CLI::IsMember({"recompute", "snapshot"}))
      ->capture_default_str();
  command.add_option("--snapshot-memory", snapshot_memory, "model: host memory for preempted sequences, e.g. 16GiB")
      ->capture_default_str();
  command.add_option("--draft", draft, "model: draft tokens verified with each token");
  command.add_option("--accept", accept, "model: probability that a draft is right");
  command.add_option("--moe-us-per-step", moe_us_per_step, "model: experts' time added to each step");
  command.add_option("--moe-us-per-token", moe_us_per_token, "model: experts' time added for each token");
  command.add_option("--seed", seed, "model: seed of jitter, token ids and drafts")->capture_default_str();
  command.add_option("--machines", machines, "model: machines that share the requests, each as the other flags say")
      ->capture_default_str();
  command
      .add_option("--route", route,
                  "model: where a request goes: round-robin, prefix (where most of it is cached) or least-loaded")
      ->capture_default_str();
  command.add_option("--requests", requests, "model: one JSON line a request");
  command.add_option("--timeline", timeline, "model: Chrome trace JSON, for Perfetto");
  command.add_option("--metrics", metrics, "model: Prometheus text");
}

Status replay_model(const LogFlags& log, const ReplayModelFlags& flags, const ReplayFiles& files) {
  const StopOnInterrupt scope;
  const auto serve = [&](const ReplayModelFlags& with) -> Result<ServedLog> {
    DSV4RT_ASSIGN_OR_RETURN(auto source, open_log(log));
    DSV4RT_ASSIGN_OR_RETURN(const ModelReplayOptions options, model_options(log, with, source->info()));
    Provenance provenance;
    if (files.wanted()) {
      DSV4RT_RETURN_IF_ERROR(provenance.add_file(with.config));
      DSV4RT_RETURN_IF_ERROR(provenance.add_file(with.step_table));
    }
    DSV4RT_ASSIGN_OR_RETURN(RunSummary run, replay::run_model([&] { return source->next(); }, options));
    return ServedLog{std::move(source), std::move(run), std::move(provenance)};
  };
  if (!flags.sweep_pool.empty()) return replay_sweep(log, flags, files, serve);
  DSV4RT_ASSIGN_OR_RETURN(const ServedLog served, serve(flags));
  if (files.table_wanted()) {
    print_log(log, *served.source);
    print_run(served.run);
  }
  return write_run_report(log, served, files);
}

Json run_report(const LogFlags& log, const ServedLog& served) {
  Provenance provenance = served.provenance;
  add_log(provenance, log, *served.source);
  Json report = replay_report_head(served.run.mode, provenance);
  report["log"] = log_json(log, *served.source);
  if (!served.devices.empty()) report["devices"] = served.devices;
  report["run"] = Json::parse(replay::summary_json(served.run));
  return report;
}

Status write_run_report(const LogFlags& log, const ServedLog& served, const ReplayFiles& files) {
  return files.wanted() ? write_replay_files(run_report(log, served), files) : Status{};
}

}  // namespace dsv4rt::cli
