// Independent engines, one for each of several devices, in one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dsv4rt/engine.h"

namespace dsv4rt {

// Threads of each of `engines` engines of the CPU that divide `threads` among them, at least one; of 0, those of the
// processors that the process may use.
std::int32_t threads_of_each(std::int32_t threads, std::size_t engines);

// Engines with these options on each of the devices, in their order. Backend "cuda": ordinals, each once, every engine
// with weights of its own. Backend "cpu" has device 0 alone, which may be named as often as there are to be engines:
// they share its threads (each has at least one) and one copy of the weights. kInvalidArgument for other lists, naming
// the device, and for threads that one engine does not take; otherwise errors of Engine::create.
Result<std::vector<std::unique_ptr<Engine>>> create_device_engines(const EngineOptions& options,
                                                                   std::span<const std::int32_t> devices);

}  // namespace dsv4rt
