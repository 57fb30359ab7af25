// Any text as config.json, with any limits: refused with a text, or a schedule, a layout and a plan whose sums agree.
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "cache/memory_plan.h"
#include "dsv4rt/model.h"
#include "expect.h"
#include "fuzz_input.h"
#include "model/rope.h"

namespace {

using namespace dsv4rt;

// Mostly values that are taken, now and then any.
template <class T>
T number(fuzz::FuzzInput& input, std::uint32_t usual) {
  return input.take<std::uint8_t>() % 8 == 0 ? input.take<T>() : static_cast<T>(input.below(usual));
}

CacheFormats take_formats(fuzz::FuzzInput& input) {
  return {.rows = static_cast<RowFormat>(input.below(4)),
          .index_keys = static_cast<IndexKeyFormat>(input.below(4)),
          .csa_rows_per_block = number<std::int32_t>(input, 257),
          .hca_rows_per_block = number<std::int32_t>(input, 65),
          .draft_budget_tokens = number<std::int32_t>(input, 8)};
}

CacheLimits take_limits(fuzz::FuzzInput& input) {
  return {.max_sequences = number<std::int32_t>(input, 300),
          .max_context_tokens = number<std::int64_t>(input, 60000),
          .max_step_tokens = number<std::int32_t>(input, 9000),
          .pool_tokens = number<std::int64_t>(input, 65000),
          .boundary_states = number<std::int32_t>(input, 100)};
}

void check_plan(const MemoryPlan& plan) {
  std::int64_t regions = 0;
  for (const PlannedRegion& region : plan.regions) {
    fuzz::expect(region.total_bytes > 0 && region.layers > 0, "a region without bytes or layers");
    regions += region.total_bytes;
  }
  fuzz::expect(plan.total_bytes >= regions && plan.block_table_bytes >= 0 && plan.step_metadata_bytes > 0 &&
                   plan.boundary_state_bytes >= 0,
               "a plan whose parts exceed the whole");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::FuzzInput input(data, size);
  const CacheFormats formats = take_formats(input);
  const CacheLimits limits = take_limits(input);
  const auto config = ModelConfig::from_json(input.rest(), "fuzzed");
  if (!config) {
    fuzz::expect_typed(config.status());
    return 0;
  }
  fuzz::expect(config->validate("again").ok(), "a config that was accepted does not validate");
  const auto schedule = LayerSchedule::create(*config);
  fuzz::expect_typed(schedule.status());
  if (!schedule) return 0;
  for (const RopeChoice choice : {RopeChoice::kPlain, RopeChoice::kCompressed}) {
    for (const float frequency : rope_frequencies(*config, choice)) {
      fuzz::expect(std::isfinite(frequency), "a frequency that is not finite");
    }
  }
  const auto layout = CacheLayout::create(*config, *schedule, formats);
  fuzz::expect_typed(layout.status());
  if (!layout) return 0;
  const auto plan = plan_memory(*config, *schedule, *layout, limits);
  fuzz::expect_typed(plan.status());
  if (plan) check_plan(*plan);
  return 0;
}
