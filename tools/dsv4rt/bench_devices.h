// dsv4rt bench --devices: decode steps of independent engines, alone and at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4rt/engine.h"
#include "text_table.h"
#include "tools/lib/step_bench.h"
#include "tools/lib/work_watch.h"

namespace dsv4rt::cli {

struct DevicesBench {
  TextTable table;
  nlohmann::ordered_json steps;  // one entry a shape, those that were timed
};

// `engines`: of the devices, with limits for all shapes (engines_bench_limits). Stops when the watch says so, with the
// shapes before that.
Result<DevicesBench> bench_devices(std::span<const std::unique_ptr<Engine>> engines,
                                   std::span<const std::int32_t> devices, std::span<const StepShape> shapes,
                                   const StepBenchOptions& bench, WorkWatch* watch);

}  // namespace dsv4rt::cli
