#include "tools/lib/device_engines.h"

#include <algorithm>
#include <string>
#include <utility>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/worker_threads.h"
#include "base/try.h"

namespace dsv4rt {
namespace {

constexpr std::size_t kMostEngines = 64;

Status check_devices(const EngineOptions& options, std::span<const std::int32_t> devices) {
  const auto refused = [](const std::string& text) { return Status{StatusCode::kInvalidArgument, "devices: " + text}; };
  if (devices.empty() || devices.size() > kMostEngines) {
    return refused(std::to_string(devices.size()) + " are named; accepted: 1 to " + std::to_string(kMostEngines));
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const std::string device = std::to_string(devices[i]);
    if (devices[i] < 0) return refused(device + "; accepted: ordinals from 0 on");
    if (options.backend == "cpu") {
      if (devices[i] != 0) return refused(device + "; accepted with backend cpu: 0, once for each engine");
    } else if (std::count(devices.begin(), devices.end(), devices[i]) > 1) {
      return refused(device + " is named more than once; accepted: each device once");
    }
  }
  return {};
}

}  // namespace

std::int32_t threads_of_each(std::int32_t threads, std::size_t engines) {
  const std::int32_t all = threads > 0 ? threads : cpu::usable_processors();
  return std::max(1, all / static_cast<std::int32_t>(engines));
}

Result<std::vector<std::unique_ptr<Engine>>> create_device_engines(const EngineOptions& options,
                                                                   std::span<const std::int32_t> devices) {
  DSV4RT_RETURN_IF_ERROR(check_devices(options, devices));
  // Before they are divided, which would make others of them.
  if (options.threads < 0 || options.threads > kMaxCpuThreads) {
    return Status{StatusCode::kInvalidArgument, "threads: " + std::to_string(options.threads) +
                                                    "; accepted: 0 (all cores) to " + std::to_string(kMaxCpuThreads)};
  }
  EngineOptions of_device = options;
  const bool cpu = options.backend == "cpu";
  if (cpu && devices.size() > 1) of_device.threads = threads_of_each(options.threads, devices.size());
  std::vector<std::unique_ptr<Engine>> engines;
  for (const std::int32_t device : devices) {
    of_device.device = cpu ? options.device : device;
    const bool first = engines.empty();
    DSV4RT_ASSIGN_OR_RETURN(auto engine,
                            cpu && !first ? engines.front()->create_sharing(of_device) : Engine::create(of_device));
    engines.push_back(std::move(engine));
  }
  return engines;
}

}  // namespace dsv4rt
