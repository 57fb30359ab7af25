// What ranks bring to each other for a prompt with context parallelism, from what the layers themselves go by, without
// an engine.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/layer_exchange.h"
#include "cache/cache_layout.h"
#include "dsv4rt/model.h"

namespace dsv4rt {

struct PromptShape {
  std::int64_t tokens = 0;
  std::int32_t step_tokens = 0;  // every step has so many, but the last, which has what is left
  std::int32_t min_tokens = 0;   // shorter steps are not dealt out: ParallelOptions::context_min_tokens
};

struct PromptExchange {
  std::int64_t steps = 0;
  std::int64_t dealt_steps = 0;
  std::vector<ExchangedBytes> every;  // index: rank; bytes that come to it where every rank has the cache afterwards
  std::vector<ExchangedBytes> one;    // and where the last step hands the sequence over to rank 0
  std::vector<std::int64_t> outputs;  // index: rank; bytes of others' outputs, where these are shared
};

// What a rank holds for a sequence of so many tokens: its blocks, whole ones, and its rings.
std::int64_t sequence_cache_bytes(const CacheLayout& layout, std::int64_t tokens);

// Of one sequence from its first token on, over the layers of the schedule.
PromptExchange prompt_exchange(const ModelConfig& config, const LayerSchedule& schedule, const CacheLayout& layout,
                               std::int32_t ranks, const PromptShape& prompt);

}  // namespace dsv4rt
