// The schedule and layout of a random setup, and what the rings of its sequences must hold.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/cache_layout.h"
#include "cache/memory_plan.h"
#include "machine_check.h"

namespace dsv4rt::property {

struct CacheDesign {
  ModelConfig config;
  LayerSchedule schedule;
  CacheLayout layout;
  CacheLimits limits;  // pool_tokens and boundary_states are the machine's
};

// `setup` is a CacheSetup or a PrefixSetup.
template <class Setup>
CacheDesign design_of(const Setup& setup) {
  CacheDesign design;
  design.config.num_hidden_layers = static_cast<std::int64_t>(setup.ratios.size());
  design.config.compress_ratios = setup.ratios;
  design.config.sliding_window = setup.window;
  design.config.max_position_embeddings = 1 << 20;
  design.schedule = take(LayerSchedule::create(design.config));
  CacheFormats formats;
  formats.csa_rows_per_block = setup.csa_rows_per_block;
  formats.hca_rows_per_block = setup.hca_rows_per_block;
  formats.draft_budget_tokens = setup.draft_budget;
  design.layout = take(CacheLayout::create(design.config, design.schedule, formats));
  design.limits.max_sequences = setup.max_sequences;
  design.limits.max_context_tokens = setup.max_context;
  design.limits.max_step_tokens = setup.max_step_tokens;
  return design;
}

// The oldest position that a sequence of `length` needs in ring 0, the window, or in the ring of ratio number ring - 1.
inline std::int64_t oldest_needed(const LayerSchedule& schedule, std::int64_t window, std::size_t ring,
                                  std::int64_t length) {
  if (ring == 0) return std::max<std::int64_t>(0, length - window + 1);
  const std::int64_t ratio = schedule.ratios()[ring - 1];
  const std::int64_t block = length - length % ratio;                    // the current block
  return ratio == 4 ? std::max<std::int64_t>(0, block - ratio) : block;  // the previous block
}

}  // namespace dsv4rt::property
