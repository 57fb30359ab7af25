#include "replay_real.h"

#include <iostream>
#include <memory>

#include "base/try.h"
#include "byte_size.h"
#include "replay_sweep.h"
#include "stop_on_interrupt.h"
#include "tools/engine_replay/engine_replay.h"

namespace dsv4rt::cli {
namespace {

Result<EngineReplayOptions> engine_options(const LogFlags& log, const ReplayModelFlags& serving,
                                           const ReplayRealFlags& flags, const replay::SourceInfo& info) {
  if (flags.engine.checkpoint.empty()) {
    return refused("--execute real: --checkpoint DIR is needed; dsv4rt gen-checkpoint writes one of random weights");
  }
  if (!serving.config.empty() || !serving.step_table.empty()) {
    return refused(
        "--execute real: the model is that of --checkpoint, and times are measured; --config and "
        "--step-table are for --execute model");
  }
  EngineReplayOptions options;
  DSV4RT_ASSIGN_OR_RETURN(options.engine, flags.engine.to_options());
  DSV4RT_ASSIGN_OR_RETURN(options.engine.limits, serving.limits());
  options.engine.prefix_cache.policy.interval_tokens = serving.prefix_interval;
  DSV4RT_ASSIGN_OR_RETURN(options.engine.prefix_cache.eviction, parse_eviction(serving.policy));
  options.engine.draft_budget_tokens = serving.draft;
  if (!serving.pool.empty()) {
    DSV4RT_ASSIGN_OR_RETURN(const std::int64_t bytes, parse_byte_size("--pool", serving.pool));
    DSV4RT_RETURN_IF_ERROR(fit_pool(options.engine, bytes));
  }
  options.executor.digests = flags.digests;
  options.executor.experts = {.us_per_step = serving.moe_us_per_step, .us_per_token = serving.moe_us_per_token};
  DSV4RT_ASSIGN_OR_RETURN(options.executor.snapshot_bytes,
                          parse_byte_size("--snapshot-memory", serving.snapshot_memory));
  DSV4RT_ASSIGN_OR_RETURN(options.replay, serving_options(log, serving, info));
  DSV4RT_ASSIGN_OR_RETURN(options.replay.route, replay::route_from_name(serving.route));
  options.devices = flags.devices;
  return options;
}

}  // namespace

void ReplayRealFlags::add_to(CLI::App& command) {
  CLI::App* group = command.add_option_group("Engine of --execute real");
  engine.add_to(*group);
  group->get_option("--checkpoint")->required(false);
  group->add_flag("--digests,!--no-digests", digests,
                  "Whether the outputs of every request are digested: a copy of them is part of each step's time");
  group
      ->add_option("--devices", devices,
                   "An engine on each of these devices, which share the requests as --route says. Backend cpu: 0 for "
                   "each engine; they share its threads and weights")
      ->delimiter(',');
}

Status replay_real(const LogFlags& log, const ReplayModelFlags& serving, const ReplayRealFlags& flags,
                   const ReplayFiles& files) {
  const StopOnInterrupt scope;
  const auto serve = [&](const ReplayModelFlags& with) -> Result<ServedLog> {
    DSV4RT_ASSIGN_OR_RETURN(auto source, open_log(log));
    DSV4RT_ASSIGN_OR_RETURN(const EngineReplayOptions options, engine_options(log, with, flags, source->info()));
    Provenance provenance;
    if (files.wanted()) DSV4RT_RETURN_IF_ERROR(provenance.add_checkpoint(options.engine.checkpoint));
    DSV4RT_ASSIGN_OR_RETURN(replay::RunSummary run, run_engine([&] { return source->next(); }, options));
    EngineOptions first = options.engine;
    if (!options.devices.empty()) first.device = options.devices.front();
    provenance.set_device(first);
    return ServedLog{std::move(source), std::move(run), std::move(provenance), options.devices};
  };
  if (!serving.sweep_pool.empty()) return replay_sweep(log, serving, files, serve);
  DSV4RT_ASSIGN_OR_RETURN(const ServedLog served, serve(serving));
  if (files.table_wanted()) {
    print_log(log, *served.source);
    print_run(served.run);
  }
  return write_run_report(log, served, files);
}

}  // namespace dsv4rt::cli
