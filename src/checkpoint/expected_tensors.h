// The one table of what an attention layer consists of: it drives loading, generation and inspection.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/host_linear.h"
#include "checkpoint/tensor_declaration.h"
#include "checkpoint/tensor_names.h"
#include "dsv4rt/model.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

enum class AttentionTensorKind : std::uint8_t {
  kFloatVector,      // F32 sinks and position biases
  kNorm,             // BF16 RMSNorm weights
  kPlainLinear,      // BF16 matrix, never quantized
  kQuantizedLinear,  // BF16, FP8 or NVFP4 matrix
};

struct AttentionTensorSpec {
  AttentionTensor tensor = AttentionTensor::kAttnSink;
  AttentionTensorKind kind = AttentionTensorKind::kFloatVector;
  std::vector<std::int64_t> shape;  // logical: [out, in] for linears
};

// The dimensions that shapes are computed from. Errors: kInvalidArgument for a field that is not
// positive, beyond 2^24, or heads that o_groups does not divide; kUnsupported when o_lora_rank is not a
// multiple of 16 (packed slices of wo_a start at whole groups of 16 rows).
Status check_attention_dimensions(const ModelConfig& config, const LayerSpec& spec);

// Precondition: check_attention_dimensions is ok.
std::vector<AttentionTensorSpec> attention_tensor_specs(const ModelConfig& config, const LayerSpec& spec);

// The stored tensors of a linear [rows, cols] with name `stem`, weight first:
//   kBf16          .weight BF16 [rows, cols]
//   kFp8Block128   .weight F8_E4M3 [rows, cols], scale F8_E8M0 [ceil(rows/128), ceil(cols/128)]
//   kNvfp4         .weight U8 [rows, cols/2], .weight_scale F8_E4M3 [rows, cols/16], .weight_scale_2 F32 []
// kNvfp4 needs cols to be a multiple of 16.
std::vector<TensorDeclaration> linear_tensors(std::string_view stem, std::int64_t rows, std::int64_t cols,
                                              WeightEncoding encoding, const NamingScheme& scheme);

// All stored tensors of a layer, quantized linears in `encoding`. Precondition as above.
std::vector<TensorDeclaration> expected_tensors(const ModelConfig& config, const LayerSpec& spec,
                                                WeightEncoding encoding, const NamingScheme& scheme = {});

}  // namespace dsv4rt
