// A replay in which an engine computes every step, or several share the requests.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4rt/engine.h"
#include "replay/replay_run.h"
#include "tools/engine_replay/engine_executor.h"

namespace dsv4rt {

struct EngineReplayOptions {
  replay::ReplayOptions replay;    // scheduler limits that are 0 are those of the engine
  EngineOptions engine;            // its draft budget is at least the scheduler's draft_tokens
  EngineExecutorOptions executor;  // its seed and drafts are the replay's
  // An engine for each, with a cache, a queue and a thread of its own: tools/lib/device_engines.h. Empty: one engine.
  std::vector<std::int32_t> devices;
};

// Errors: of create_device_engines, EngineExecutor::create and replay_requests.
Result<replay::RunSummary> run_engine(replay::RequestSupply supply, const EngineReplayOptions& options);

// Sets limits.pool_tokens to the most tokens of which the whole cache (pools, rings, tables, boundary states, metadata)
// takes at most `cache_bytes`. Reads the checkpoint's config.json. kResourceExhausted when not even one longest
// sequence fits.
Status fit_pool(EngineOptions& options, std::int64_t cache_bytes);

}  // namespace dsv4rt
