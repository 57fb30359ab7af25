#include "bench_devices.h"

#include <memory>
#include <string>
#include <utility>

#include "base/try.h"
#include "tools/lib/engines_bench.h"

namespace dsv4rt::cli {

Result<DevicesBench> bench_devices(std::span<const std::unique_ptr<Engine>> engines,
                                   std::span<const std::int32_t> devices, std::span<const StepShape> shapes,
                                   const StepBenchOptions& bench, WorkWatch* watch) {
  DevicesBench result{.table = TextTable({"batch", "context", "engine", "device", "alone ms/step", "together ms/step",
                                          "alone tokens/s", "together tokens/s", "times one"}),
                      .steps = nlohmann::ordered_json::array()};
  for (const StepShape& shape : shapes) {
    const auto measured = bench_engines(engines, shape, bench, watch);
    if (watch != nullptr && watch->stopped()) break;
    DSV4RT_ASSIGN_OR_RETURN(const std::vector<EngineTimes> times, measured);

    nlohmann::ordered_json entry{{"batch", shape.batch}, {"context", shape.context_tokens}};
    if (shape.shortest_tokens > 0) entry["shortest_context"] = shape.shortest_tokens;
    const auto tokens_per_s = [&](double ms) { return shape.batch / ms * 1e3; };
    double together = 0;
    double alone = 0;
    for (std::size_t i = 0; i < times.size(); ++i) {
      const EngineTimes& time = times[i];
      alone += tokens_per_s(time.alone_ms);
      together += tokens_per_s(time.together_ms);
      result.table.add_row({std::to_string(shape.batch), context_text(shape), std::to_string(i),
                            std::to_string(devices[i]), fixed(time.alone_ms, 3), fixed(time.together_ms, 3),
                            fixed(tokens_per_s(time.alone_ms), 1), fixed(tokens_per_s(time.together_ms), 1), "-"});
      entry["engines"].push_back({{"device", devices[i]},
                                  {"alone_ms", time.alone_ms},
                                  {"together_ms", time.together_ms},
                                  {"alone_tokens_per_s", tokens_per_s(time.alone_ms)},
                                  {"together_tokens_per_s", tokens_per_s(time.together_ms)}});
    }
    const double one = alone / static_cast<double>(times.size());
    result.table.add_row({std::to_string(shape.batch), context_text(shape), "all", "-", "-", "-", "-",
                          fixed(together, 1), fixed(together / one, 3)});
    entry["one_engine_tokens_per_s"] = one;
    entry["together_tokens_per_s"] = together;
    entry["times_one_engine"] = together / one;
    result.steps.push_back(std::move(entry));
    if (watch != nullptr) {
      watch->tell(static_cast<std::int64_t>(result.steps.size()), static_cast<std::int64_t>(shapes.size()));
    }
  }
  return result;
}

}  // namespace dsv4rt::cli
