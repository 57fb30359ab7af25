// Weights that are NaN or infinite.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/bfloat16.h"
#include "checkpoint/attention_weights.h"
#include "dsv4rt/status.h"

namespace dsv4rt {

// Index of the first value that is NaN or infinite.
std::optional<std::size_t> first_non_finite(std::span<const float> values);
std::optional<std::size_t> first_non_finite(std::span<const bf16> values);
// Index of the first E4M3 code that is NaN.
std::optional<std::size_t> first_nan_e4m3(std::span<const std::byte> codes);

// Reads every code and scale of the layer's matrices (vectors are the loader's): kBadInput naming the tensor, the index
// and the value. Where the pages of a checkpoint are not in memory, it brings them there for who packs them next.
Status check_finite_matrices(const HostAttentionWeights& layer);

// What messages say is accepted.
inline constexpr const char* kFiniteValuesAccepted =
    "finite values (EngineOptions::allow_non_finite_weights, --allow-non-finite)";

}  // namespace dsv4rt
