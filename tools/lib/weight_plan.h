// What the attention weights of a model take once they are packed, without loading them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "checkpoint/host_linear.h"
#include "dsv4rt/model.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Bytes of a packed matrix, by its encoding and shape: Backend::packed_bytes but with products in NVFP4.
using PackedBytes = std::int64_t (*)(const HostLinear& weight);
// Of the backend "cpu" or "cuda"; kInvalidArgument for others. Asks no device.
Result<PackedBytes> packed_bytes_of(std::string_view backend);

// Of one of `ranks` ranks with tensor parallelism, if every linear that may be quantized is stored in `encoding`.
std::int64_t planned_weight_bytes(const ModelConfig& config, std::span<const LayerSpec> layers, WeightEncoding encoding,
                                  PackedBytes packed_bytes, std::int32_t ranks = 1);

// Of the checkpoint in a directory, each tensor as it is stored there: what an engine's EngineMemory::weight_bytes
// becomes. Reads headers, norms, sinks and scales, and no matrix. Errors: those of Checkpoint and
// load_attention_weights.
Result<std::int64_t> planned_weight_bytes(const std::filesystem::path& checkpoint, const ModelConfig& config,
                                          std::span<const LayerSpec> layers, PackedBytes packed_bytes);

}  // namespace dsv4rt
