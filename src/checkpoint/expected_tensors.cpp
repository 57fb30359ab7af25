#include "checkpoint/expected_tensors.h"

#include <string>
#include <utility>

#include "base/arithmetic.h"

namespace dsv4rt {
namespace {

constexpr std::int64_t kMaxDimension = std::int64_t{1} << 24;
constexpr std::int64_t kSliceRows = 16;
constexpr std::int64_t kNvfp4GroupSize = 16;

using Tensor = AttentionTensor;
using Kind = AttentionTensorKind;

struct CompressorTensors {
  Tensor ape, wkv, wgate, norm;
};

void add_compressor(std::vector<AttentionTensorSpec>& out, const CompressorTensors& names, const ModelConfig& config,
                    const LayerSpec& spec, std::int64_t dim) {
  const std::int64_t width = spec.overlap ? 2 * dim : dim;
  out.push_back({names.ape, Kind::kFloatVector, {spec.ratio, width}});
  out.push_back({names.wkv, Kind::kPlainLinear, {width, config.hidden_size}});
  out.push_back({names.wgate, Kind::kPlainLinear, {width, config.hidden_size}});
  out.push_back({names.norm, Kind::kNorm, {dim}});
}

}  // namespace

Status check_attention_dimensions(const ModelConfig& config, const LayerSpec& spec) {
  const std::pair<std::string_view, std::int64_t> fields[] = {
      {"hidden_size", config.hidden_size},
      {"num_attention_heads", config.num_attention_heads},
      {"q_lora_rank", config.q_lora_rank},
      {"o_lora_rank", config.o_lora_rank},
      {"o_groups", config.o_groups},
      {"index_n_heads", spec.indexer ? config.index_n_heads : 1},
      {"compress_ratios", spec.ratio > 0 ? spec.ratio : spec.ratio + 1},
  };
  for (const auto& [name, value] : fields) {
    if (value < 1 || value > kMaxDimension) {
      return {StatusCode::kInvalidArgument, "config: " + std::string(name) + " of " + std::to_string(value) +
                                                " is outside 1.." + std::to_string(kMaxDimension)};
    }
  }
  if (config.num_attention_heads % config.o_groups != 0) {
    return {StatusCode::kInvalidArgument, "config: o_groups of " + std::to_string(config.o_groups) +
                                              " does not divide num_attention_heads of " +
                                              std::to_string(config.num_attention_heads)};
  }
  if (config.o_lora_rank % kSliceRows != 0) {
    return {StatusCode::kUnsupported, "config: o_lora_rank of " + std::to_string(config.o_lora_rank) +
                                          " is not a multiple of " + std::to_string(kSliceRows)};
  }
  return {};
}

std::vector<AttentionTensorSpec> attention_tensor_specs(const ModelConfig& config, const LayerSpec& spec) {
  const std::int64_t d = config.hidden_size;
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t query_width = heads * kHeadDim;
  const std::int64_t output_width = config.o_groups * config.o_lora_rank;
  std::vector<AttentionTensorSpec> out = {
      {Tensor::kAttnSink, Kind::kFloatVector, {heads}},
      {Tensor::kWqA, Kind::kQuantizedLinear, {config.q_lora_rank, d}},
      {Tensor::kQNorm, Kind::kNorm, {config.q_lora_rank}},
      {Tensor::kWqB, Kind::kQuantizedLinear, {query_width, config.q_lora_rank}},
      {Tensor::kWkv, Kind::kQuantizedLinear, {kHeadDim, d}},
      {Tensor::kKvNorm, Kind::kNorm, {kHeadDim}},
      {Tensor::kWoA, Kind::kQuantizedLinear, {output_width, query_width / config.o_groups}},
      {Tensor::kWoB, Kind::kQuantizedLinear, {d, output_width}},
  };
  if (spec.ratio > 0) {
    add_compressor(out,
                   {Tensor::kCompressorApe, Tensor::kCompressorWkv, Tensor::kCompressorWgate, Tensor::kCompressorNorm},
                   config, spec, kHeadDim);
  }
  if (spec.indexer) {
    out.push_back(
        {Tensor::kIndexerWqB, Kind::kQuantizedLinear, {config.index_n_heads * kIndexHeadDim, config.q_lora_rank}});
    out.push_back({Tensor::kIndexerWeightsProj, Kind::kPlainLinear, {config.index_n_heads, d}});
    add_compressor(out, {Tensor::kIndexerApe, Tensor::kIndexerWkv, Tensor::kIndexerWgate, Tensor::kIndexerNorm}, config,
                   spec, kIndexHeadDim);
  }
  return out;
}

std::vector<TensorDeclaration> linear_tensors(std::string_view stem, std::int64_t rows, std::int64_t cols,
                                              WeightEncoding encoding, const NamingScheme& scheme) {
  const auto name = [stem](std::string_view suffix) { return std::string(stem).append(suffix); };
  switch (encoding) {
    case WeightEncoding::kFp8Block128:
      return {{name(kWeightSuffix), TensorDtype::kF8E4M3, {rows, cols}},
              {name(fp8_scale_suffix(scheme)),
               TensorDtype::kF8E8M0,
               {ceil_div(rows, kFp8ScaleBlock), ceil_div(cols, kFp8ScaleBlock)}}};
    case WeightEncoding::kNvfp4:
      return {{name(kWeightSuffix), TensorDtype::kU8, {rows, cols / 2}},
              {name(kNvfp4ScaleSuffix), TensorDtype::kF8E4M3, {rows, cols / kNvfp4GroupSize}},
              {name(kNvfp4GlobalScaleSuffix), TensorDtype::kF32, {}}};
    case WeightEncoding::kBf16:
      break;
  }
  return {{name(kWeightSuffix), TensorDtype::kBf16, {rows, cols}}};
}

std::vector<TensorDeclaration> expected_tensors(const ModelConfig& config, const LayerSpec& spec,
                                                WeightEncoding encoding, const NamingScheme& scheme) {
  std::vector<TensorDeclaration> out;
  for (const AttentionTensorSpec& tensor : attention_tensor_specs(config, spec)) {
    const std::string stem = attention_stem(scheme, spec.id, tensor.tensor);
    switch (tensor.kind) {
      case AttentionTensorKind::kFloatVector:
        out.push_back({stem, TensorDtype::kF32, tensor.shape});
        break;
      case AttentionTensorKind::kNorm:
        out.push_back({stem + std::string(kWeightSuffix), TensorDtype::kBf16, tensor.shape});
        break;
      case AttentionTensorKind::kPlainLinear:
      case AttentionTensorKind::kQuantizedLinear: {
        const auto stored = tensor.kind == AttentionTensorKind::kPlainLinear ? WeightEncoding::kBf16 : encoding;
        for (auto& part : linear_tensors(stem, tensor.shape[0], tensor.shape[1], stored, scheme)) {
          out.push_back(std::move(part));
        }
        break;
      }
    }
  }
  return out;
}

}  // namespace dsv4rt
