#include "tools/lib/weight_plan.h"

#include <string>
#include <vector>

#include "attention/planned_weights.h"
#include "backend/cpu/cpu_linear.h"
#include "base/arithmetic.h"
#include "base/message_text.h"
#include "base/try.h"
#include "checkpoint/attention_loader.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/expected_tensors.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kFp8Block = 128;
constexpr std::int64_t kNvfp4Group = 16;

// Codes and scales as checkpoints store them: what the CUDA backend plans with (Backend::packed_bytes).
std::int64_t stored_bytes(const HostLinear& weight) {
  const std::int64_t rows = weight.out_features;
  const std::int64_t cols = weight.in_features;
  switch (weight.encoding) {
    case WeightEncoding::kFp8Block128:
      return rows * cols + ceil_div(rows, kFp8Block) * ceil_div(cols, kFp8Block);
    case WeightEncoding::kNvfp4:
      return rows * cols / 2 + rows * cols / kNvfp4Group;
    case WeightEncoding::kBf16:
      break;
  }
  return rows * cols * 2;
}

// Matrices that ranks share: heads of the queries, and groups of the output.
bool is_shared(AttentionTensor tensor) {
  return tensor == AttentionTensor::kWqB || tensor == AttentionTensor::kWoA || tensor == AttentionTensor::kWoB;
}

}  // namespace

Result<PackedBytes> packed_bytes_of(std::string_view backend) {
  if (backend == "cpu") return &cpu::cpu_packed_bytes;
  if (backend == "cuda") return &stored_bytes;
  return Status{StatusCode::kInvalidArgument, "backend: '" + printable(backend) + "'; accepted: cpu, cuda"};
}

std::int64_t planned_weight_bytes(const ModelConfig& config, std::span<const LayerSpec> layers, WeightEncoding encoding,
                                  PackedBytes packed_bytes, std::int32_t ranks) {
  std::int64_t total = 0;
  for (const LayerSpec& layer : layers) {
    for (const AttentionTensorSpec& tensor : attention_tensor_specs(config, layer)) {
      std::int64_t values = 1;
      for (const std::int64_t size : tensor.shape) values *= size;
      const bool quantized = tensor.kind == AttentionTensorKind::kQuantizedLinear;
      if (!quantized && tensor.kind != AttentionTensorKind::kPlainLinear) {
        total += values * (tensor.kind == AttentionTensorKind::kFloatVector ? 4 : 2);
        continue;
      }
      HostLinear linear;
      linear.encoding = quantized ? encoding : WeightEncoding::kBf16;
      linear.out_features = tensor.shape[0];
      linear.in_features = tensor.shape[1];
      total += is_shared(tensor.tensor) ? packed_bytes(linear) / ranks : packed_bytes(linear);
    }
  }
  return total;
}

Result<std::int64_t> planned_weight_bytes(const std::filesystem::path& checkpoint, const ModelConfig& config,
                                          std::span<const LayerSpec> layers, PackedBytes packed_bytes) {
  DSV4RT_ASSIGN_OR_RETURN(const Checkpoint source, Checkpoint::open(checkpoint));
  DSV4RT_ASSIGN_OR_RETURN(const std::vector<HostAttentionWeights> host,
                          load_attention_weights(source, config, layers, NonFinite::kAllowed));
  std::int64_t total = 0;
  for (const HostAttentionWeights& layer : host) total += planned_layer_bytes(layer, packed_bytes);
  return total;
}

}  // namespace dsv4rt
