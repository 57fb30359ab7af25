// Index scores on Hopper's matrix instruction: score[s] = sum over heads of w[h] * relu(q[h] . k[s]).
//
// One producer warp fills a ring of key tiles by bulk copies, straight from the paged blocks; four warpgroups
// take tiles in turn. A warpgroup turns its tile into register operands once and runs the queries of the
// run's tokens over it, so that tokens of one sequence decode a key once. Accumulators hold keys in rows and
// heads in columns: a thread sums its columns, four lanes add up to a key's score.
//
// A score's bits depend on its query, its key, its weights and the number of heads alone: the columns of a
// lane are added in head order, even and odd groups of eight heads apart, then the four partial sums of a
// lane, then the lanes as a tree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/select_rows/index_mma.cuh"
#include "backend/cuda/kernels/select_rows/key_operand.cuh"
#include "backend/cuda/kernels/select_rows/params.h"
#include "backend/cuda/kernels/select_rows/score_runs.cuh"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kScoreGroups = 4;  // warpgroups
inline constexpr int kScoreWorkers = kScoreGroups * 128;
inline constexpr int kWgmmaScoreThreads = kScoreWorkers + 128;  // registers are moved between warpgroups
inline constexpr int kMostRunTokens = 8;
inline constexpr int kMostStages = 32;
inline constexpr int kQueryTileBytes = kTileHeads * kIndexHeadDim * 2;

// Division of the dynamic shared memory, chosen on the host.
struct ScoreShape {
  std::int32_t head_tiles = 1;
  std::int32_t stages = 0;       // of the ring
  std::int32_t stage_bytes = 0;  // a tile's codes, then its scales
};

// Beside the ring and the queries.
struct ScoreControl {
  std::uint64_t full[kMostStages];
  std::uint64_t empty[kMostStages];
  std::int64_t warp_total[kWgmmaScoreThreads / 32];
  ScorePart part;
  std::int32_t rows[kMostRunTokens];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Between the worker threads.
__device__ inline void sync_workers() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kScoreWorkers) : "memory");
}

// Positive part; NaN stays NaN.
__device__ inline float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;\n" : "=f"(y) : "f"(x));
  return y;
}

template <IndexKeyFormat kFormat>
class ScoreWorker {
 public:
  using Operand = KeyOperand<kFormat>;

  __device__ ScoreWorker(const SelectRowsParams& params, const ScoreBatch& batch, const ScoreShape& shape,
                         std::byte* queries, float* weights, ScoreControl& control)
      : p_(params), batch_(batch), shape_(shape), queries_(queries), weights_(weights), control_(control) {}

  // Queries and weights of the run's tokens to shared memory, by all workers.
  __device__ void load_queries(const ScoreRuns& runs, const ScoreRun& run) {
    const int heads = shape_.head_tiles * kTileHeads;
    for (int i = run.first; i < run.end; ++i) {
      const int slot = i - run.first;
      if (thread_ == 0) control_.rows[slot] = runs.rows(i);
      for (int unit = thread_; unit < heads * 8; unit += kScoreWorkers) {
        load_query_part(batch_.first_token + i, slot, unit / 8, unit % 8);
      }
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    sync_workers();
  }

  // Scores of the tile's keys for every token of the run that sees them. `release` is called once the tile's
  // bytes have been read.
  template <class Release>
  __device__ void score_tile(const std::byte* keys, int tile, const ScoreRun& run, const Release& release) {
    KeyFragment a;
    const int row = thread_ % 128 / 32 * 16 + lane_ / 4;
    const float factor = Operand::load(keys, row, lane_ % 4, a);
    __syncwarp();
    release();
    for (int i = run.first; i < run.end; ++i) {
      const int slot = i - run.first;
      if (control_.rows[slot] <= tile * kTileKeys) continue;
      float sum[2][4] = {};
      for (int h = 0; h < shape_.head_tiles; ++h) {
        const int query_tile = slot * shape_.head_tiles + h;
        float d[32];
        multiply(d, a, query_tile);
        const int present = p_.heads - h * kTileHeads;
        if (present >= kTileHeads) {
          add_heads<true>(d, query_tile, present, sum);
        } else {
          add_heads<false>(d, query_tile, present, sum);
        }
      }
      float* out = batch_.scores + i * batch_.stride + std::int64_t{tile} * kTileKeys;
      report(sum, factor, out + row);
    }
  }

 private:
  // Sixteen dims of a head. FP16 queries are scaled by a power of two so that the head's largest magnitude
  // stands near the top of the range: what FP16 then cannot hold is below 2^-32 of it. The weight takes the
  // factor back.
  __device__ void load_query_part(std::int64_t token, int slot, int head, int part) {
    const bool present = head < p_.heads;
    uint4 raw[2] = {};
    if (present) {
      const auto* source =
          reinterpret_cast<const uint4*>(p_.q + (token * p_.heads + head) * kIndexHeadDim + part * 16);
      raw[0] = __ldg(source);
      raw[1] = __ldg(source + 1);
    }
    float weight = 0.0F;
    if (present && part == 0) {
      weight = __fmul_rn(to_float(p_.head_weight[token * p_.head_weight_stride + head]), p_.head_scale);
    }
    const std::uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w, raw[1].x, raw[1].y, raw[1].z, raw[1].w};
    std::uint16_t values[16];
    if constexpr (Operand::kF16) {
      std::uint32_t amax = 0;
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const std::uint32_t magnitude = (words[i / 2] >> (i % 2 * 16)) & 0x7fffU;
        if (magnitude < 0x7f80U) amax = max(amax, magnitude);
      }
#pragma unroll
      for (int lanes = 4; lanes > 0; lanes /= 2) amax = max(amax, __shfl_xor_sync(0xffffffffU, amax, lanes));
      const int exponent = max(static_cast<int>(amax >> 7), 1 + 14);  // biased; 2^14 times smaller is normal
      const float up = __uint_as_float(static_cast<std::uint32_t>(2 * 127 + 14 - min(exponent, 127 + 126)) << 23);
      const float down = __uint_as_float(static_cast<std::uint32_t>(min(exponent, 127 + 126) - 14) << 23);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float value = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000U);
        values[i] = __half_as_ushort(__float2half_rn(__fmul_rn(value, up)));
      }
      weight = __fmul_rn(weight, down);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) values[i] = static_cast<std::uint16_t>(words[i / 2] >> (i % 2 * 16));
    }
    std::byte* const tile = queries_ + (slot * shape_.head_tiles + head / kTileHeads) * kQueryTileBytes;
    const int row = head % kTileHeads;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int column = Operand::column(part * 16 + i);
      const int unit = (column % 64 / 8) ^ (row % 8);
      *reinterpret_cast<std::uint16_t*>(tile + column / 64 * (kQueryTileBytes / 2) + row * 128 + unit * 16 +
                                        column % 8 * 2) = values[i];
    }
    if (part == 0) weights_[slot * shape_.head_tiles * kTileHeads + head] = weight;
  }

  // Products of the keys and one tile of heads.
  __device__ void multiply(float (&d)[32], const KeyFragment& a, int query_tile) const {
    const std::uint32_t base =
        static_cast<std::uint32_t>(__cvta_generic_to_shared(queries_)) + query_tile * kQueryTileBytes;
    const std::uint64_t low = wgmma_tile(base);
    const std::uint64_t high = wgmma_tile(base + kQueryTileBytes / 2);
    wgmma_hold(d);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kOperandSteps; ++s) {
      index_mma<Operand::kF16>(d, a[s], (s < 4 ? low : high) + s % 4 * kWgmmaStep, s > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(d);
  }

  template <bool kAllPresent>
  __device__ void add_heads(const float (&d)[32], int query_tile, int present, float (&sum)[2][4]) const {
    const float* weights = weights_ + query_tile * kTileHeads + lane_ % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 weight = *reinterpret_cast<const float2*>(weights + 8 * j);
#pragma unroll
      for (int below = 0; below < 2; ++below) {
        float* const chains = &sum[below][j % 2 * 2];
        const int head = 8 * j + lane_ % 4 * 2;
        if (kAllPresent || head < present) chains[0] = __fmaf_rn(relu(d[4 * j + 2 * below]), weight.x, chains[0]);
        if (kAllPresent || head + 1 < present) {
          chains[1] = __fmaf_rn(relu(d[4 * j + 2 * below + 1]), weight.y, chains[1]);
        }
      }
    }
  }

  // Even lanes report row r, odd ones row r + 8.
  __device__ void report(const float (&sum)[2][4], float factor, float* out) const {
    float total[2];
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      total[below] = __fadd_rn(__fadd_rn(sum[below][0], sum[below][2]), __fadd_rn(sum[below][1], sum[below][3]));
    }
    const bool odd = lane_ % 2 != 0;
    float own = odd ? total[1] : total[0];
    own = __fadd_rn(own, __shfl_xor_sync(0xffffffffU, odd ? total[0] : total[1], 1));
    own = __fadd_rn(own, __shfl_xor_sync(0xffffffffU, own, 2));
    if (lane_ % 4 < 2) out[lane_ % 4 * 8] = __fmul_rn(own, factor);
  }

  const SelectRowsParams& p_;
  const ScoreBatch& batch_;
  const ScoreShape& shape_;
  std::byte* queries_;  // [run tokens][head tiles][two halves of the dims][64 heads][128 B], swizzled
  float* weights_;      // [run tokens][head tiles * 64]
  ScoreControl& control_;
  int thread_ = static_cast<int>(threadIdx.x);
  int lane_ = thread_ % 32;
};

// Fills the ring with the part's tiles, in order. One warp.
template <IndexKeyFormat kFormat>
__device__ inline void produce_tiles(const SelectRowsParams& p, const ScoreRuns& runs, const ScorePart& part,
                                     const ScoreShape& shape, std::uint32_t ring, const ScoreControl& control) {
  using Layout = typename KeyOperand<kFormat>::Layout;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_first_policy();
  std::int32_t left = part.tiles;
  std::int32_t tile = part.first_tile;
  std::uint32_t full = static_cast<std::uint32_t>(__cvta_generic_to_shared(control.full));
  std::uint32_t empty = static_cast<std::uint32_t>(__cvta_generic_to_shared(control.empty));
  int stage = 0;
  std::uint32_t phase = 1;  // the ring starts empty
  for (ScoreRun run = runs.run_ending_from(part.last_token); left > 0; run = runs.run_ending_from(run.end)) {
    const std::int64_t table = p.step.sequence_slot[runs.sequence(run.first)] * p.keys.table_stride;
    const std::int32_t end = min(run.tiles, tile + left);
    left -= end - tile;
    for (; tile < end; tile += 32) {
      std::int32_t block = 0;
      if (tile + lane < end) block = p.keys.block_table[table + (tile + lane) * kTileKeys / p.keys.shape.rows];
      for (int i = 0; i < min(32, end - tile); ++i) {
        const std::int64_t offset = __shfl_sync(0xffffffffU, block, i) * p.keys.shape.block_bytes;
        if (lane == 0) {
          const std::int32_t row = (tile + i) * kTileKeys % p.keys.shape.rows;
          const std::byte* source = p.keys.blocks + offset;
          barrier_wait(empty + 8 * stage, phase);
          barrier_arrive_expect(full + 8 * stage, kTileKeys * (Layout::kDataBytes + Layout::kScaleBytes));
          const std::uint32_t target = ring + stage * shape.stage_bytes;
          copy_bulk(target, source + p.keys.shape.data_offset(row), kTileKeys * Layout::kDataBytes, full + 8 * stage,
                    policy);
          if constexpr (Layout::kScaleBytes > 0) {
            copy_bulk(target + kTileKeys * Layout::kDataBytes, source + p.keys.shape.scale_offset(row),
                      kTileKeys * Layout::kScaleBytes, full + 8 * stage, policy);
          }
        }
        if (++stage == shape.stages) {
          stage = 0;
          phase ^= 1;
        }
      }
    }
    tile = 0;
  }
}

#endif  // sm_90a

// Grid: any number of blocks, one on a multiprocessor. Blocks of rows are multiples of 64.
template <IndexKeyFormat kFormat>
__global__ void __launch_bounds__(kWgmmaScoreThreads, 1)
    wgmma_score_kernel(const __grid_constant__ SelectRowsParams p, const __grid_constant__ ScoreBatch batch,
                       const __grid_constant__ ScoreShape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte score_shared[];
  std::byte* const queries = score_shared;
  std::byte* const ring = queries + batch.group_tokens * shape.head_tiles * kQueryTileBytes;
  auto* const weights = reinterpret_cast<float*>(ring + shape.stages * shape.stage_bytes);
  auto& control =
      *reinterpret_cast<ScoreControl*>(weights + batch.group_tokens * shape.head_tiles * kTileHeads);
  const int thread = static_cast<int>(threadIdx.x);
  const auto full = static_cast<std::uint32_t>(__cvta_generic_to_shared(control.full));
  const auto empty = static_cast<std::uint32_t>(__cvta_generic_to_shared(control.empty));
  if (thread < shape.stages) {
    barrier_init(full + 8 * thread, 1);
    barrier_init(empty + 8 * thread, 4);  // the warps of one warpgroup
    barrier_init_fence();
  }
  const ScoreRuns runs(p, batch);
  find_score_part<kWgmmaScoreThreads>(runs, batch.tokens, control.warp_total, control.part);
  __syncthreads();
  const ScorePart part = control.part;
  if (part.tiles == 0) return;
  if (thread >= kScoreWorkers) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;\n");
    if (thread >= kScoreWorkers + 32) return;
    produce_tiles<kFormat>(p, runs, part, shape, static_cast<std::uint32_t>(__cvta_generic_to_shared(ring)), control);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 112;\n");
  ScoreWorker<kFormat> worker(p, batch, shape, queries, weights, control);
  // The part's tiles are numbered on; number n is in stage n % stages and belongs to warpgroup n % 4.
  std::int32_t number = 0;
  std::int32_t mine = thread / 128;
  std::int32_t tile = part.first_tile;
  int stage = thread / 128;  // stages are a multiple of the warpgroups
  std::uint32_t phase = 0;
  ScoreRun run = runs.run_ending_from(part.last_token);
  while (true) {
    worker.load_queries(runs, run);
    const std::int32_t count = min(run.tiles - tile, part.tiles - number);
    for (; mine < number + count; mine += kScoreGroups) {
      barrier_wait(full + 8 * stage, phase);
      worker.score_tile(ring + stage * shape.stage_bytes, tile + (mine - number), run, [&] {
        if (thread % 32 == 0) barrier_arrive(empty + 8 * stage);
      });
      stage += kScoreGroups;
      if (stage >= shape.stages) {
        stage -= shape.stages;
        phase ^= 1;
      }
    }
    number += count;
    if (number >= part.tiles) break;
    run = runs.run_ending_from(run.end);
    tile = 0;
    sync_workers();  // the queries are read no more
  }
#else
  __trap();  // chosen for this architecture alone
#endif
}

}  // namespace dsv4rt::cuda
