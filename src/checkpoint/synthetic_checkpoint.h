// Checkpoints of random weights with the released names, dtypes and shapes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/host_linear.h"
#include "dsv4rt/model.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

struct SyntheticCheckpointOptions {
  // Storage of the quantizable linears. kFp8Block128 is the released form.
  WeightEncoding encoding = WeightEncoding::kFp8Block128;
  // Same seed, config and layer: same matrices, rounded to the encoding; the layer range does not matter.
  std::uint64_t seed = 0;
  // Tensor bytes after which a new shard begins; 0 writes one `model.safetensors`. A larger tensor gets
  // a shard of its own.
  std::uint64_t max_shard_bytes = 0;
};

// "fp8", "bf16" or "nvfp4"; kInvalidArgument naming the three.
Result<WeightEncoding> weight_encoding_from_name(std::string_view name);

// The Hugging Face config.json of a model: the attention keys of ModelConfig, the fixed dimensions and
// the quantization_config that goes with `encoding`.
std::string config_json(const ModelConfig& config, WeightEncoding encoding);

// Writes config.json and the weights of `layers` into `directory`, which is created if needed. Memory
// stays within a stripe of 128 rows plus the scales of one linear. Values: weights as SyntheticMatrix,
// norms within 1 +- 0.35, sinks of deviation 1, position biases of deviation 0.1.
// Index and config come last, so that a directory whose writer was killed does not load; after an error nothing of it
// is left. Errors: kFailedPrecondition when the directory already holds a model; those of
// check_attention_dimensions; kUnsupported for NVFP4 with an input width that 16 does not divide;
// those of OutputFile.
Status write_synthetic_checkpoint(const std::filesystem::path& directory, const ModelConfig& config,
                                  std::span<const LayerSpec> layers, const SyntheticCheckpointOptions& options);

}  // namespace dsv4rt
