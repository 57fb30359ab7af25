// What a prefix cache costs at different intervals of boundary states, and what then fits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dsv4rt/memory_plan.h"

namespace dsv4rt {

struct PrefixIntervalCost {
  std::int64_t interval_tokens = 0;  // between states; 0: only at the ends of prompts and outputs
  double bytes_per_token = 0;        // rows of a cached token, and its part of a state
  std::int64_t cached_tokens = 0;    // how many fit
  std::int64_t states = 0;           // how many these have; at the ends those of the plan, which are set aside
};

// For 0 and the powers of two from 128 to 16,384, as far as these are whole units. `cache_bytes`: memory for the whole
// cache; what the plan's sequences, tables and metadata need is taken off, and cached tokens get the rest.
std::vector<PrefixIntervalCost> prefix_interval_costs(const MemoryPlan& plan, std::int64_t cache_bytes);

}  // namespace dsv4rt
