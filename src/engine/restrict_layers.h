// The configuration of a part of a model's layers.
#pragma once

#include <cstdint>

#include "dsv4rt/model.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Narrows the config to `count` layers from `first` on (0: all that follow), so that layer 0 of its schedule is
// `first`. kInvalidArgument naming the layers there are.
Result<ModelConfig> restrict_layers(ModelConfig config, std::int32_t first, std::int32_t count);

}  // namespace dsv4rt
