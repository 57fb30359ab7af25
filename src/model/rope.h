// Rotary frequencies of a layer.
#pragma once

#include <array>

#include "dsv4rt/model.h"

namespace dsv4rt {

inline constexpr int kRopePairs = kRopeDim / 2;

// Angle per position of each interleaved pair (2i, 2i+1), FP32, in radians per token.
// angle(pos, i) = float(pos) * frequency[i], evaluated in FP32 as the reference does.
// Source: DeepSeek inference/model.py precompute_freqs_cis; YaRN (arXiv 2309.00071) without mscale.
using RopeFrequencies = std::array<float, kRopePairs>;

RopeFrequencies rope_frequencies(const ModelConfig& config, RopeChoice choice);

}  // namespace dsv4rt
