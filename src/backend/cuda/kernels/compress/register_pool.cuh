// Blocks of at most kMostRegisterRows rows: a row's dim / 2 threads pool two channels each in registers.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/exp.cuh"
#include "backend/cuda/kernels/compress/completed_row.cuh"

namespace dsv4rt::cuda {

inline constexpr int kMostRegisterRows = 8;

template <int kDim>
struct RegisterPoolShared {
  float pooled[kDim];
  PoolRow rows[kMostRegisterRows];
  std::uint32_t warp_amax[kRowQuads / 32];
};

// Per channel sum(exp(s - max) * kv) / sum(exp(s - max)) over the rows in position order, rounded to BF16, for
// channels `channel` and the next. A row that does not exist has weight 0, which changes no bit of a sum. `bias` was
// read before: the ape of fresh rows, 0 for stored ones, whose score contains it (the sign of a zero does not reach
// the result).
__device__ inline float2 pool_in_registers(const PoolRow (&rows)[kMostRegisterRows], int begin, int end, int channel,
                                           const float2 (&bias)[kMostRegisterRows]) {
  const float low = __int_as_float(static_cast<int>(0xff800000U));
  float2 score[kMostRegisterRows];
  float2 kv[kMostRegisterRows];
#pragma unroll
  for (int i = 0; i < kMostRegisterRows; ++i) {
    const bool exists = i >= begin && i < end;
    score[i] = exists ? *reinterpret_cast<const float2*>(rows[i].score + channel) : make_float2(low, low);
    kv[i] = exists ? *reinterpret_cast<const float2*>(rows[i].kv + channel) : float2{};
  }
  float2 largest = make_float2(low, low);
#pragma unroll
  for (int i = 0; i < kMostRegisterRows; ++i) {
    score[i] = make_float2(__fadd_rn(score[i].x, bias[i].x), __fadd_rn(score[i].y, bias[i].y));
    largest = make_float2(fmaxf(largest.x, score[i].x), fmaxf(largest.y, score[i].y));
  }
  float2 weights{};
  float2 weighted{};
#pragma unroll
  for (int i = 0; i < kMostRegisterRows; ++i) {
    const float2 weight = make_float2(exp_nonpositive(__fsub_rn(score[i].x, largest.x)),
                                      exp_nonpositive(__fsub_rn(score[i].y, largest.y)));
    weights = make_float2(__fadd_rn(weights.x, weight.x), __fadd_rn(weights.y, weight.y));
    weighted = make_float2(__fadd_rn(weighted.x, __fmul_rn(weight.x, kv[i].x)),
                           __fadd_rn(weighted.y, __fmul_rn(weight.y, kv[i].y)));
  }
  return make_float2(round_value(__fdiv_rn(weighted.x, weights.x)), round_value(__fdiv_rn(weighted.y, weights.y)));
}

// The row or index key that `token` completes, for a group of kDim / 2 threads.
template <int kDim>
__device__ inline void compress_in_registers(const CompressParams& p, std::int64_t token,
                                             const RowGroup<kDim / 2>& group, RegisterPoolShared<kDim>& shared) {
  const int channel = 2 * group.thread;
  const int quad = group.thread % (kDim / 4);
  const TokenPosition place = token_position(p.step, token);
  const PoolSource source(p, place);
  group.sync();  // the previous token is done with `shared`
  if (group.thread >= source.begin && group.thread < source.end) shared.rows[group.thread] = source.row(group.thread);
  float2 bias[kMostRegisterRows];
#pragma unroll
  for (int i = 0; i < kMostRegisterRows; ++i) {
    const bool fresh = i >= source.begin && i >= source.fresh && i < source.end;
    bias[i] = fresh ? *reinterpret_cast<const float2*>(source.bias(i) + channel) : float2{};
  }
  CompletedRow row(p, place, token, quad);
  group.sync();
  wait_for_predecessors();

  row.locate(p);
  *reinterpret_cast<float2*>(shared.pooled + channel) =
      pool_in_registers(shared.rows, source.begin, source.end, channel, bias);
  group.sync();
  // The first half of the threads finishes the row.
  if constexpr (kDim == kHeadDim) {
    const auto half = RowGroup<kRowQuads>::own();
    static_assert(kRowQuads % 32 == 0);
    if (half.index % 2 == 0) row.store(p, shared.pooled, half, shared.warp_amax);
  } else {
    if (__shfl_sync(kFullWarp, group.thread, 0) < kKeyQuads) row.store_key(p, shared.pooled, quad);
  }
}

}  // namespace dsv4rt::cuda
