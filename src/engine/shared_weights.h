// The packed weights of an engine's layers, and what they are weights of. Engines of one process may share them: they
// are read only once they are made.
#pragma once

#include <memory>
#include <vector>

#include "attention/layer_weights.h"
#include "backend/backend.h"
#include "base/sha256.h"
#include "dsv4rt/model.h"
#include "dsv4rt/types.h"
#include "model/tensor_shard.h"

namespace dsv4rt {

struct SharedWeights {
  // Owns the memory of `layers` and runs nothing: the engine that packed them may be gone, and its stream too.
  std::unique_ptr<Backend> backend;
  std::vector<LayerWeights> layers;  // index: local layer
  ModelConfig config;                // restricted to the loaded layers
  LayerSchedule schedule;
  std::vector<LayerId> layer_ids;      // numbering of the model
  std::vector<LayerSpec> layer_specs;  // the same layers, in that numbering
  Sha256::Digest digest{};             // sampled_weights_digest
  bool quantized_linears = false;      // some linear is not plain BF16
  bool fp8_wo_a = false;               // some layer's first projection of outputs is FP8
};

}  // namespace dsv4rt
