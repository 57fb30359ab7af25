// Rounding through a storage format without storing: the value a reader of the cache would see.
#pragma once

#include <cstddef>

#include "dsv4rt/types.h"

namespace dsv4rt {

// Replaces values [kHeadDim] by what encode_row followed by decode_row gives. Idempotent for every
// format with power-of-two scales and for bf16.
void round_through(RowFormat format, float* values);

// The same for an index key or query head, values [kIndexHeadDim].
void round_through(IndexKeyFormat format, float* values);

inline constexpr std::size_t kActivationBlockValues = 128;

// Rounds the input of an FP8 linear in place: blocks of 128 values (the last may be shorter), each
// through E4M3 under its own E8M0 scale; value = code * scale, exact in FP32. Source: the activation
// quantization of DeepSeek's FP8 linears.
void round_activation_fp8(float* values, std::size_t count);

}  // namespace dsv4rt
