#include <algorithm>
#include <atomic>
#include <cstdint>

#include "backend/cpu/cpu_ops.h"
#include "base/check.h"

namespace dsv4rt::cpu {
namespace {

// The exponent of a NaN or an infinity is all ones. As an int16 the magnitude vectorizes on every processor.
bool all_finite(const bf16* row, std::int64_t width) {
  std::int16_t most = 0;
  for (std::int64_t i = 0; i < width; ++i) {
    most = std::max(most, static_cast<std::int16_t>(row[i].bits & 0x7fffU));
  }
  return most < 0x7f80;
}

}  // namespace

Status CpuOps::flag_non_finite(const FlagNonFiniteParams& params) {
  DSV4RT_CHECK(params.x != nullptr && params.flags != nullptr && params.width > 0);
  return team_.parallel_for(params.step.counts.tokens, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t token = begin; token < end; ++token) {
      const std::int32_t sequence = params.step.token_sequence[token];
      if (sequence < 0 || all_finite(params.x + token * params.width, params.width)) continue;
      // Rows of one sequence may be looked at by several threads.
      std::atomic_ref(params.flags[sequence]).store(1, std::memory_order_relaxed);
    }
  });
}

}  // namespace dsv4rt::cpu
