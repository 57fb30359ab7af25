// Bytes of the buffers that the operations of a step hand to each other.
#pragma once

#include "attention/workspace.h"

namespace dsv4rt {

// The workspace of the layers, and input and output of a layer for whole steps.
inline std::int64_t step_workspace_bytes(const WorkspaceShape& shape, const ModelConfig& config) {
  const std::int64_t hidden_bytes = shape.max_tokens * config.hidden_size * std::int64_t{sizeof(bf16)};
  return static_cast<std::int64_t>(workspace_bytes(shape)) + 2 * hidden_bytes;
}

}  // namespace dsv4rt
