// The largest calls that attention layers make, for a backend to plan its scratch by.
#pragma once

#include "backend/step_shapes.h"
#include "dsv4rt/memory_plan.h"
#include "dsv4rt/model.h"

namespace dsv4rt {

// The shapes of steps within `limits` over the layers of `schedule`. It follows what AttentionLayer::forward calls.
StepShapes step_shapes(const ModelConfig& config, const LayerSchedule& schedule, const CacheLimits& limits);

}  // namespace dsv4rt
