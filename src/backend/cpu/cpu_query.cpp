// Norms and rotations of queries and latents.
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/rms_scale.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/step_heads.h"

namespace dsv4rt::cpu {

Status CpuOps::rms_norm(const RmsNormParams& params) {
  const std::int64_t width = params.width;
  return team_.parallel_for(params.tokens, [&](std::int64_t begin, std::int64_t end, int) {
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
}

Status CpuOps::query(const QueryParams& params) {
  const RowKernels& kernels = row_kernels(isa_);
  return for_each_head(team_, params.step, params.heads, params.rope,
                       [&](std::int64_t item, const RopeRotation& rotation) {
                         bf16* head = params.q + item * kHeadDim;
                         kernels.normalize_head(head, params.eps);
                         rotation.apply(head + kNopeDim);
                       });
}

}  // namespace dsv4rt::cpu
