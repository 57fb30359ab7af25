// Norms and rotations of queries and latents.
#include <algorithm>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/rms_scale.h"
#include "backend/cpu/rope_rows.h"
#include "backend/cpu/step_tokens.h"

namespace dsv4rt::cpu {
namespace {

// One head of the query. Every step is rounded to BF16, as the reference model computes it: the square,
// its mean, mean + eps, the reciprocal root and the product. A single rounding at the end changes the
// attention output by 0.5 to 1.5 %.
void normalize_head(bf16* head, float eps) {
  const float sum = sum_in_lanes(kHeadDim, [head](int i) {
    const float value = to_float(head[i]);
    return round_to_bf16(value * value);
  });
  const float mean = round_to_bf16(sum / static_cast<float>(kHeadDim));
  const float scale = round_to_bf16(1.0f / std::sqrt(round_to_bf16(mean + eps)));
  for (int i = 0; i < kHeadDim; ++i) head[i] = to_bf16(to_float(head[i]) * scale);
}

}  // namespace

Status CpuOps::rms_norm(const RmsNormParams& params) {
  const std::int64_t width = params.width;
  team_.parallel_for(params.tokens, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) {
      const bf16* x = params.x + token * width;
      bf16* y = params.y + token * width;
      const float sum = sum_in_lanes(params.width, [x](int i) {
        const float value = to_float(x[i]);
        return value * value;
      });
      const float scale = 1.0f / std::sqrt(sum / static_cast<float>(width) + params.eps);
      for (std::int64_t i = 0; i < width; ++i) y[i] = to_bf16(to_float(x[i]) * scale * to_float(params.weight[i]));
    }
  });
  return {};
}

Status CpuOps::query(const QueryParams& params) {
  const std::int64_t heads = params.heads;
  team_.parallel_for(params.step.counts.tokens * heads, [&](std::int64_t begin, std::int64_t end, int) {
    std::int64_t item = begin;
    while (item < end) {
      const std::int64_t token = item / heads;
      const std::int64_t token_end = std::min(end, (token + 1) * heads);
      const RopeRotation rotation(params.rope, params.step.token_position[token]);
      for (; item < token_end; ++item) {
        bf16* head = params.q + item * kHeadDim;
        normalize_head(head, params.eps);
        rotation.apply(head + kNopeDim);
      }
    }
  });
  return {};
}

Status CpuOps::rotate_heads(const RotateHeadsParams& params) {
  const std::int64_t heads = params.heads;
  team_.parallel_for(params.step.counts.tokens * heads, [&](std::int64_t begin, std::int64_t end, int) {
    std::int64_t item = begin;
    while (item < end) {
      const std::int64_t token = item / heads;
      const std::int64_t token_end = std::min(end, (token + 1) * heads);
      const RopeRotation rotation(params.rope, params.step.token_position[token]);
      for (; item < token_end; ++item) rotation.apply(params.x + (item + 1) * params.head_dim - kRopeDim);
    }
  });
  return {};
}

}  // namespace dsv4rt::cpu
