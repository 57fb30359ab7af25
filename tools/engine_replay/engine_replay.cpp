#include "tools/engine_replay/engine_replay.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/try.h"
#include "cache/memory_plan.h"
#include "engine/restrict_layers.h"
#include "tools/lib/device_engines.h"

namespace dsv4rt {

Result<replay::RunSummary> run_engine(replay::RequestSupply supply, const EngineReplayOptions& options) {
  replay::ReplayOptions replay_options = options.replay;
  EngineOptions engine_options = options.engine;
  DSV4RT_RETURN_IF_ERROR(replay::adopt_limits(replay_options.scheduler, engine_options.limits));
  engine_options.draft_budget_tokens =
      std::max(engine_options.draft_budget_tokens, replay_options.scheduler.draft_tokens);
  EngineExecutorOptions executor_options = options.executor;
  executor_options.seed = replay_options.seed;
  executor_options.draft_tokens = replay_options.scheduler.draft_tokens;
  const std::vector<std::int32_t> devices =
      options.devices.empty() ? std::vector<std::int32_t>{engine_options.device} : options.devices;
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<std::unique_ptr<Engine>> engines,
                          create_device_engines(engine_options, devices));
  std::deque<replay::VirtualClock> clocks;
  std::vector<std::unique_ptr<EngineExecutor>> executors;
  std::vector<replay::ReplayMachine> machines;
  for (const std::unique_ptr<Engine>& engine : engines) {
    replay::VirtualClock& clock = clocks.emplace_back();
    DSV4RT_ASSIGN_OR_RETURN(auto executor, EngineExecutor::create(*engine, executor_options, clock));
    machines.push_back({.executor = *executors.emplace_back(std::move(executor)), .clock = clock});
  }
  return replay::replay_requests(std::move(supply), machines, replay_options);
}

Status fit_pool(EngineOptions& options, std::int64_t cache_bytes) {
  DSV4RT_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::from_file(options.checkpoint / "config.json"));
  DSV4RT_ASSIGN_OR_RETURN(config, restrict_layers(std::move(config), options.first_layer, options.layer_count));
  DSV4RT_ASSIGN_OR_RETURN(const LayerSchedule schedule, LayerSchedule::create(config));
  DSV4RT_ASSIGN_OR_RETURN(const Profile profile, Profile::from_name(options.profile));
  const CacheFormats formats{.rows = options.row_format.value_or(profile.default_row_format),
                             .index_keys = options.index_format.value_or(profile.default_index_format),
                             .csa_rows_per_block = options.csa_rows_per_block,
                             .hca_rows_per_block = options.hca_rows_per_block,
                             .draft_budget_tokens = options.draft_budget_tokens};
  DSV4RT_ASSIGN_OR_RETURN(const CacheLayout layout, CacheLayout::create(config, schedule, formats));
  DSV4RT_ASSIGN_OR_RETURN(const MemoryPlan plan, fit_memory(config, schedule, layout, options.limits, cache_bytes, 0));
  options.limits.pool_tokens = plan.limits.pool_tokens;
  return {};
}

}  // namespace dsv4rt
