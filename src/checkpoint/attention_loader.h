// Makes the weights of attention layers from a checkpoint.
//
// Accepted: the names of tensor_names.h; quantized linears in any encoding of linear_tensors(), each
// on its own; FP8 scales as F8_E8M0, or as F32 when every one is a power of two (published base
// checkpoints store them so); norms as BF16, or as F32 rounded to BF16; sinks and position biases as
// F32, or as BF16 widened. Compressor projections and weights_proj must be BF16: they are not rounded
// silently.
//
// Checked: name, dtype and shape of every tensor; FP8 scales lie in 2^-64..2^64 (so kernels may fold a
// scale into a product of two such scales without overflow) and are not NaN; NVFP4 global scales are
// finite and positive; norms, sinks and position biases are finite unless that is allowed. Not checked: codes inside
// weight matrices and NVFP4 group scales (finite_weights.h); a NaN there gives NaN outputs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/attention_weights.h"
#include "checkpoint/tensor_source.h"
#include "dsv4rt/model.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

enum class NonFinite : std::uint8_t { kRefused, kAllowed };

// The weights of `layers`, in their order, read into memory of the source. One error
// lists every problem of every layer, a line each: name, what was found, what is expected. Its code is
// kNotFound when tensors are only missing, kUnsupported when only dtypes are not offered, otherwise
// kBadInput (also for a file that has changed since it was opened); kResourceExhausted without memory; those of
// check_attention_dimensions and detect_naming.
Result<std::vector<HostAttentionWeights>> load_attention_weights(const TensorSource& source, const ModelConfig& config,
                                                                 std::span<const LayerSpec> layers,
                                                                 NonFinite vectors = NonFinite::kRefused);

// The same for one layer.
Result<HostAttentionWeights> load_attention_weights(const TensorSource& source, const ModelConfig& config,
                                                    const LayerSpec& layer);

// What load_attention_weights says of names, dtypes and shapes, without reading any data.
Status check_attention_tensors(const TensorSource& source, const ModelConfig& config,
                               std::span<const LayerSpec> layers);

// Gives back the memory of the layer's matrices, which must not be touched any more: they are packed.
void drop_matrices(const TensorSource& source, const HostAttentionWeights& layer) noexcept;

}  // namespace dsv4rt
