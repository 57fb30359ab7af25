// An attention trace: inputs of layers token by token and, optionally, what a reference computed.
//
// A safetensors file with metadata n_prefill and n_decode (n = their sum) and, for layers N,
//   layers.N.input            BF16 [n, d]      required
//   layers.N.output           BF16 [n, d]      attention output
//   layers.N.compressed_kv    BF16 [n/m, 512]  de-quantized compressed rows
//   layers.N.index_k          BF16 [n/m, 128]  de-quantized index keys
//   layers.N.topk             I32  [n, k]      selected rows, -1 padded
//   layers.N.topk_margin      F32  [n]         score of the last selected minus the first rejected
//   layers.N.window_kv_last   BF16 [w, 512]    window rows at the end, oldest first
// Layers are independent: inputs are not chained.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bfloat16.h"
#include "checkpoint/safetensors_reader.h"
#include "dsv4rt/model.h"
#include "dsv4rt/status.h"
#include "dsv4rt/types.h"

namespace dsv4rt {

struct LayerTrace {
  LayerId layer;
  std::vector<bf16> input;                  // [n, d]
  std::optional<std::vector<bf16>> output;  // [n, d]
  std::optional<std::vector<bf16>> compressed_kv;
  std::optional<std::vector<bf16>> index_k;
  std::optional<std::vector<std::int32_t>> topk;  // [n, top_k]
  std::int64_t top_k = 0;
  std::optional<std::vector<float>> topk_margin;  // [n]
  std::optional<std::vector<bf16>> window_kv_last;
};

struct AttentionTrace {
  std::filesystem::path path;
  std::int64_t prefill_tokens = 0;
  std::int64_t decode_tokens = 0;
  std::vector<LayerTrace> layers;  // ascending by layer

  [[nodiscard]] std::int64_t tokens() const noexcept { return prefill_tokens + decode_tokens; }
  [[nodiscard]] const LayerTrace* find(LayerId layer) const noexcept;

  // Reads the layers first..last that the trace has. `config` is the whole model's. Errors: those of
  // SafetensorsReader; kBadInput naming file, tensor and field for anything that is not as above.
  static Result<AttentionTrace> open(const std::filesystem::path& path, const ModelConfig& config, LayerId first,
                                     LayerId last);
};

}  // namespace dsv4rt
