// Window rows: staged for the step's tokens, then moved into the ring.
#include "backend/cpu/copy_row.h"
#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/rms_scale.h"
#include "backend/cpu/rope_rows.h"
#include "backend/cpu/step_tokens.h"
#include "base/check.h"

namespace dsv4rt::cpu {

Status CpuOps::swa_kv(const SwaKvParams& params) {
  DSV4RT_CHECK(params.staged_first + params.step.counts.tokens <= params.staged_shape.rows);
  return team_.parallel_for(params.step.counts.tokens, [&](std::int64_t begin, std::int64_t end, int) {
    float values[kHeadDim];
    for (std::int64_t token = begin; token < end; ++token) {
      const TokenPosition place = token_position(params.step, token);
      const bf16* kv = params.kv + token * kHeadDim;
      // Padding stages a row of zeros: defined bytes whatever its input holds.
      for (int i = 0; i < kHeadDim; ++i) values[i] = place.real ? to_float(kv[i]) : 0.0f;
      const float scale = rms_scale(values, kHeadDim, params.eps);
      for (int i = 0; i < kHeadDim; ++i) {
        values[i] = round_to_bf16(values[i] * scale * to_float(params.norm_weight[i]));
      }
      RopeRotation(params.rope, place.position).apply(values + kNopeDim);
      encode_row(params.format, params.staged_shape, values, params.staged, params.staged_first + token);
    }
  });
}

Status CpuOps::swa_cache_write(const SwaCacheWriteParams& params) {
  const StepView& step = params.step;
  const SwaRing& ring = params.ring;
  DSV4RT_CHECK(params.staged_shape.data_bytes == ring.shape.data_bytes &&
               params.staged_shape.scale_bytes == ring.shape.scale_bytes);
  return team_.parallel_for(step.counts.sequences, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t sequence = begin; sequence < end; ++sequence) {
      const TokenRange range = last_tokens(step, sequence, ring.shape.rows);
      std::byte* slot = ring.base + step.sequence_slot[sequence] * ring.slot_bytes;
      for (std::int32_t token = range.begin; token < range.end; ++token) {
        copy_row(params.staged_shape, params.staged, token, ring.shape, slot,
                 step.token_position[token] % ring.shape.rows);
      }
    }
  });
}

}  // namespace dsv4rt::cpu
