// The loop over all heads of a step's tokens that norms and rotations share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/parallel.h"
#include "backend/cpu/rope_rows.h"
#include "backend/ops.h"

namespace dsv4rt::cpu {

// Heads that take long enough to wake a thread for.
inline constexpr std::int64_t kHeadGrain = 32;

// Calls body(item, rotation) for item = token * heads + head of every head; the angles are computed
// once for the heads of a token that one worker has.
template <class Body>
Status for_each_head(const ThreadTeam& team, const StepView& step, std::int64_t heads, const RopeParams& rope,
                     const Body& body) {
  const auto heads_of_range = [&](std::int64_t begin, std::int64_t end, int) {
    std::int64_t item = begin;
    while (item < end) {
      const std::int64_t token = item / heads;
      const std::int64_t token_end = std::min(end, (token + 1) * heads);
      const RopeRotation rotation(rope, step.token_position[token]);
      for (; item < token_end; ++item) body(item, rotation);
    }
  };
  return team.parallel_for(step.counts.tokens * heads, heads_of_range, kHeadGrain);
}

}  // namespace dsv4rt::cpu
