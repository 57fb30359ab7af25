// A replay in which an engine computes every step.
#pragma once

#include <cstdint>

#include "dsv4rt/engine.h"
#include "replay/replay_run.h"
#include "tools/engine_replay/engine_executor.h"

namespace dsv4rt {

struct EngineReplayOptions {
  replay::ReplayOptions replay;    // scheduler limits that are 0 are those of the engine
  EngineOptions engine;            // its draft budget is at least the scheduler's draft_tokens
  EngineExecutorOptions executor;  // its seed and drafts are the replay's
};

// Errors: of Engine::create, EngineExecutor::create and replay_requests.
Result<replay::RunSummary> run_engine(replay::RequestSupply supply, const EngineReplayOptions& options);

// Sets limits.pool_tokens to the most tokens of which the whole cache (pools, rings, tables, boundary states, metadata)
// takes at most `cache_bytes`. Reads the checkpoint's config.json. kResourceExhausted when not even one longest
// sequence fits.
Status fit_pool(EngineOptions& options, std::int64_t cache_bytes);

}  // namespace dsv4rt
