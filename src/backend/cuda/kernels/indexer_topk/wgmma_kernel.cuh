// Index scores on Hopper's matrix instruction: score[s] = sum over heads of w[h] * relu(q[h] . k[s]).
//
// One producer warp fills a ring of key tiles by bulk copies, straight from the paged blocks; three warpgroups
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
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/registers.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/indexer_topk/index_mma.cuh"
#include "backend/cuda/kernels/indexer_topk/key_operand.cuh"
#include "backend/cuda/kernels/indexer_topk/params.h"
#include "backend/cuda/kernels/indexer_topk/score_runs.cuh"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {

inline constexpr int kScoreGroups = 3;  // warpgroups
inline constexpr int kScoreWorkers = kScoreGroups * 128;
inline constexpr int kWgmmaScoreThreads = kScoreWorkers + 128;  // registers are moved between warpgroups
inline constexpr int kMostRunTokens = 8;
inline constexpr int kMostStages = 30;
inline constexpr int kQueryTileBytes = kTileHeads * kIndexHeadDim * 2;

// Division of the dynamic shared memory, chosen on the host.
struct ScoreShape {
  std::int32_t head_tiles = 1;
  std::int32_t stages = 0;       // stages of the ring, a multiple of kScoreGroups
  std::int32_t stage_bytes = 0;  // a tile's codes, then its scales
};

// What lies in shared memory beside the queries, the ring and the weights.
struct ScoreControl {
  std::uint64_t full[kMostStages];
  std::uint64_t empty[kMostStages];
  RunSum warp_total[kWgmmaScoreThreads / 32];
  ScorePart part;
  std::int32_t rows[kMostRunTokens];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Between the worker threads.
__device__ inline void sync_workers() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kScoreWorkers) : "memory");
}

// The positive part, twice it where weights are halved for that: an addition is cheaper than a maximum, and
// -infinity, for which it does not serve, arises with BF16 keys only. NaN stays NaN.
template <bool kTwice>
__device__ inline float positive_part(float x) {
  if constexpr (kTwice) return __fadd_rn(x, fabsf(x));
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;\n" : "=f"(y) : "f"(x));
  return y;
}

// Weight of a head that does not exist: a NaN that no arithmetic gives.
inline constexpr std::uint32_t kNoHead = 0x7f8dead1U;

// Place of a head's weight among its tile's: the sixteen of a lane's columns lie side by side.
__device__ inline int weight_place(int head) {
  return head / kTileHeads * kTileHeads + head % 8 / 2 * 16 + head % kTileHeads / 8 * 2 + head % 2;
}

// Queries in shared memory, of a token: [head tiles][two halves of the dims][64 heads][128 B], swizzled, and
// their weights [head tiles * 64].
template <IndexKeyFormat kFormat>
class QueryLoader {
 public:
  using Operand = KeyOperand<kFormat>;

  __device__ QueryLoader(const IndexerTopkParams& params, int head_tiles) : p_(params), head_tiles_(head_tiles) {}

  // Tokens from `token` on, kAhead of them at a time: a fetch takes as long as memory does.
  template <int kAhead>
  __device__ void load(std::int64_t token, int tokens, std::byte* queries, float* weights) const {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kThreads) return;
#pragma unroll 1
    for (int tile = 0; tile < head_tiles_; ++tile) {
#pragma unroll 1
      for (int first = 0; first < tokens; first += kAhead) {
        Part part[kAhead][kThreadParts];
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
#pragma unroll
          for (int j = 0; j < kThreadParts; ++j) {
            if (first + i < tokens) part[i][j] = fetch(token + first + i, head(tile, thread, j), thread % 8);
          }
        }
#pragma unroll
        for (int i = 0; i < kAhead; ++i) {
          const int slot = (first + i) * head_tiles_;
#pragma unroll
          for (int j = 0; j < kThreadParts; ++j) {
            if (first + i < tokens) {
              place(part[i][j], head(tile, thread, j), thread % 8, queries + slot * kQueryTileBytes,
                    weights + slot * kTileHeads);
            }
          }
        }
      }
    }
  }

 private:
  static constexpr int kThreads = 256;  // threads that load queries
  static constexpr int kThreadParts = kTileHeads * 8 / kThreads;
  static __device__ int head(int tile, int thread, int part) {
    return tile * kTileHeads + part * (kThreads / 8) + thread / 8;
  }

  // Sixteen dims of a head.
  struct Part {
    std::uint32_t words[8] = {};
    float weight = 0.0F;
  };

  // Part `index` of a head, zeros for a head that does not exist.
  __device__ Part fetch(std::int64_t token, int head, int index) const {
    Part part;
    if (head >= p_.heads) return part;
    const auto* source = reinterpret_cast<const uint4*>(p_.q + (token * p_.heads + head) * kIndexHeadDim + index * 16);
    const uint4 low = __ldg(source);
    const uint4 high = __ldg(source + 1);
    part = {.words = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w},
            .weight = to_float(p_.head_weight[token * p_.head_weight_stride + head])};
    return part;
  }

  // FP16 queries are scaled by a power of two so that the head's largest magnitude stands near the top of the
  // range: what FP16 then cannot hold is below 2^-32 of it. The weight takes the factor back. The eight lanes
  // of a head call together.
  __device__ void place(Part& part, int head, int index, std::byte* queries, float* weights) const {
    std::uint32_t(&words)[8] = part.words;
    float weight = __fmul_rn(part.weight, p_.head_scale);
    if constexpr (Operand::kF16) {
      std::uint32_t largest = 0;  // largest magnitude of each half of the words
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = __vmaxu2(largest, words[i] & 0x7fff7fffU);
      largest = max(largest & 0xffffU, largest >> 16);
      const unsigned lanes = 0xffU << (threadIdx.x % 32 / 8 * 8);
#pragma unroll
      for (int distance = 4; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(lanes, largest, distance));
      }
      // The largest magnitude goes to [2^14, 2^15); the factor and its inverse stay normal. Heads that are not finite
      // need no scale.
      const std::uint32_t exponent = min(max(largest >> 7, 16U), 253U);
      const float up = __uint_as_float((2 * 127 + 14 - exponent) << 23);
      // Halved too: positive_part() gives twice the value.
      weight = __fmul_rn(weight, __uint_as_float((exponent - 15) << 23));
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float first = __fmul_rn(__uint_as_float(words[i] << 16), up);
        const float second = __fmul_rn(__uint_as_float(words[i] & 0xffff0000U), up);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(words[i]) : "f"(second), "f"(first));
      }
    }
    Operand::pair_up(words);
    // The columns of the part's begin and of a pair within it have no bits in common.
    const int column = Operand::column(index * 16);
    int offset = head * 128 + column / 64 * (kQueryTileBytes / 2) + ((column % 64 * 2) ^ (head % 8 * 16));
    asm volatile("" : "+r"(offset));  // eight of them are not worth keeping from run to run
    std::byte* const tile = queries + head / kTileHeads * (kQueryTileBytes - kTileHeads * 128);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      *reinterpret_cast<std::uint32_t*>(tile + (offset ^ (Operand::column(Operand::pair_dim(i)) * 2))) = words[i];
    }
    if (!Operand::kF16 && head >= p_.heads) weight = __uint_as_float(kNoHead);
    if (index == 0) weights[weight_place(head)] = weight;
  }

  const IndexerTopkParams& p_;
  int head_tiles_;
};

// The matrix instruction reads its register operand until its results have been waited for: the compiler,
// which does not know, must not use the registers for anything else before.
__device__ inline void hold_keys(KeyFragment& keys) {
#pragma unroll
  for (int s = 0; s < kOperandSteps; ++s) {
    asm volatile("" : "+r"(keys[s][0]), "+r"(keys[s][1]), "+r"(keys[s][2]), "+r"(keys[s][3])::"memory");
  }
}

// Products of the keys and one tile of heads; done at wgmma_wait.
template <IndexKeyFormat kFormat>
__device__ inline void start_products(float (&d)[32], const KeyFragment& keys, std::uint32_t query_tile) {
  const std::uint64_t low = query_descriptor(query_tile);
  const std::uint64_t high = query_descriptor(query_tile + kQueryTileBytes / 2);
  wgmma_hold(d);
  wgmma_fence();
#pragma unroll
  for (int s = 0; s < kOperandSteps; ++s) {
    index_mma<KeyOperand<kFormat>::kF16>(d, keys[s], (s < 4 ? low : high) + s % 4 * kWgmmaStep, s > 0);
  }
  wgmma_commit();
}

// A lane's partial sums: [row r or r + 8][two of even groups of eight heads, two of odd groups].
using HeadSums = float[2][4];

// Weights of a lane's columns of a tile.
using HeadWeights = float[16];
__device__ inline void load_weights(const float* from, HeadWeights& weights) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float4 four = reinterpret_cast<const float4*>(from)[i];
    weights[4 * i] = four.x, weights[4 * i + 1] = four.y, weights[4 * i + 2] = four.z, weights[4 * i + 3] = four.w;
  }
}

// Heads that do not exist have queries of zeros, which add nothing to finite keys; BF16 keys may be infinite, and
// such heads are left out by their weight.
template <bool kF16>
__device__ inline void add_heads(const float (&d)[32], const HeadWeights& weights, HeadSums& sum) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    if (!kF16 && __float_as_uint(weights[i]) == kNoHead) continue;
#pragma unroll
    for (int below = 0; below < 2; ++below) {
      float& chain = sum[below][i % 4];
      chain = __fmaf_rn(positive_part<kF16>(d[i / 2 * 4 + i % 2 + 2 * below]), weights[i], chain);
    }
  }
}

// The score of row r in even lanes, of row r + 8 in odd ones.
__device__ inline float finish_score(const HeadSums& sum, float factor) {
  float total[2];
#pragma unroll
  for (int below = 0; below < 2; ++below) {
    total[below] = __fadd_rn(__fadd_rn(sum[below][0], sum[below][2]), __fadd_rn(sum[below][1], sum[below][3]));
  }
  const bool odd = threadIdx.x % 2 != 0;
  float own = odd ? total[1] : total[0];
  own = __fadd_rn(own, __shfl_xor_sync(0xffffffffU, odd ? total[0] : total[1], 1));
  own = __fadd_rn(own, __shfl_xor_sync(0xffffffffU, own, 2));
  return __fmul_rn(own, factor);
}

// What the workers share.
struct ScoreMemory {
  std::byte* queries;  // [run tokens], see QueryLoader
  std::byte* ring;
  float* weights;
  ScoreControl* control;
};

// Before a barrier of the block.
__device__ inline void init_score_barriers(ScoreControl& control, const ScoreShape& shape) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < shape.stages) {
    barrier_init(shared_address(control.full + thread), 1);
    barrier_init(shared_address(control.empty + thread), 128);  // the lanes of one warpgroup
    barrier_init_fence();
  }
}

// A warpgroup's way through the ring: tile number n of the block is in stage n % stages and belongs to
// warpgroup n % kScoreGroups.
class RingReader {
 public:
  __device__ RingReader(const ScoreMemory& memory, const ScoreShape& shape)
      : first_(memory.ring + group() * shape.stage_bytes),
        keys_(first_),
        first_full_(shared_address(memory.control->full + group())),
        full_(first_full_),
        turns_(shape.stages / kScoreGroups),
        step_bytes_(kScoreGroups * shape.stage_bytes),
        left_(turns_) {}

  // The warpgroup's next tile.
  __device__ const std::byte* wait() const {
    barrier_wait(full_, phase_);
    return keys_;
  }
  // Gives the tile's memory back and moves on. The fence lets this lane's reads end before the copy engine writes
  // there: the compiler starts them before the arrival but does not wait for them. Every lane arrives, since race
  // checkers do not see an arrival after __syncwarp() as that of the other lanes too.
  __device__ void release() {
    fence_async_proxy();
    barrier_arrive(full_ + kFullToEmpty);
    keys_ += step_bytes_;
    full_ += 8 * kScoreGroups;
    if (--left_ == 0) {
      keys_ = first_;
      full_ = first_full_;
      left_ = turns_;
      phase_ ^= 1;
    }
  }

 private:
  static constexpr std::uint32_t kFullToEmpty = offsetof(ScoreControl, empty) - offsetof(ScoreControl, full);
  static __device__ int group() { return static_cast<int>(threadIdx.x) / 128; }

  const std::byte* first_;
  const std::byte* keys_;
  std::uint32_t first_full_;
  std::uint32_t full_;
  int turns_;
  int step_bytes_;
  int left_;
  std::uint32_t phase_ = 0;
};

// The same in all lanes, and known to be: products may be under way across branches that depend on it.
__device__ inline int warp_uniform(int value) {
  return __shfl_sync(0xffffffffU, value, 0);
}

// The lane's first row of a tile, and its place among the four lanes of that row.
struct LanePlace {
  int lane = static_cast<int>(threadIdx.x) % 32;
  int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
  int column = lane % 4;

  __device__ LanePlace() {
    asm volatile("" : "+r"(row), "+r"(column));  // not worth computing again for every tile
  }
  [[nodiscard]] __device__ int reported_row() const { return row + column % 2 * 8; }
  [[nodiscard]] __device__ bool reports() const { return column < 2; }
};

// Tiles [tile, end) of a run of one token, every kScoreGroups-th. While the products of a tile are formed, the
// next one's bytes are read and the one before is summed over heads.
template <IndexKeyFormat kFormat>
__device__ inline void score_single(const ScoreMemory& memory, RingReader& ring, int tile, int end, float* out) {
  using Operand = KeyOperand<kFormat>;
  int left = warp_uniform((end - tile + kScoreGroups - 1) / kScoreGroups);  // tiles whose products are not formed
  if (left <= 0) return;
  const LanePlace place;
  const std::uint32_t queries = shared_address(memory.queries);
  const float* const weights_from = memory.weights + place.column * 16;
  HeadWeights weights;
  if constexpr (Operand::kF16) load_weights(weights_from, weights);
  out += tile * kTileKeys + place.reported_row();
  KeyFragment keys;
  typename Operand::Raw raw = Operand::read(ring.wait(), place.row, place.column);
  float factor;
  const auto read_next = [&] {
    if (--left > 0) raw = Operand::read(ring.wait(), place.row, place.column);
  };
  // The next tile's bytes and the weights are in registers before this tile is summed where they fit. BF16 bytes are
  // themselves the operand: the compiler reads them into the very registers that products under way still read, and
  // what hold_keys() holds is a copy.
  constexpr bool kAhead = Operand::kF16;
  // Products of the keys just read.
  const auto start = [&](float(&d)[32]) {
    factor = Operand::convert(raw, place.column, keys);
    ring.release();
    start_products<kFormat>(d, keys, queries);
    if constexpr (kAhead) read_next();
  };
  const auto step = [&](float(&now)[32], float(&next)[32]) {
    wgmma_wait<0>();
    wgmma_hold(now);
    hold_keys(keys);
    if constexpr (!kAhead) read_next();
    const float own_factor = factor;
    const bool more = left > 0;
    if (more) start(next);
    HeadSums sum = {};
    if constexpr (!Operand::kF16) load_weights(weights_from, weights);
    add_heads<Operand::kF16>(now, weights, sum);
    const float score = finish_score(sum, own_factor);
    if (place.reports()) *out = score;
    out += kScoreGroups * kTileKeys;
    return more;
  };
  float d[2][32];
  start(d[0]);
#pragma unroll 1
  while (step(d[0], d[1]) && step(d[1], d[0])) {
  }
  wgmma_wait<0>();  // nothing is under way, which the compiler does not see
}

// Does the same as above for any run. `rows`, ascending: what each of its tokens sees.
template <IndexKeyFormat kFormat>
__device__ inline void score_run(const ScoreShape& shape, const ScoreMemory& memory, RingReader& ring, int tile,
                                 int end, int tokens, float* out, std::int64_t stride) {
  using Operand = KeyOperand<kFormat>;
  const int query_tiles = warp_uniform(tokens) * shape.head_tiles;
  const LanePlace place;
#pragma unroll 1
  for (; tile < end; tile += kScoreGroups) {
    KeyFragment keys;
    const float factor = Operand::convert(Operand::read(ring.wait(), place.row, place.column), place.column, keys);
    ring.release();
    int token = 0;  // the first that sees the tile
#pragma unroll 1
    while (memory.control->rows[token] <= tile * kTileKeys) ++token;
    token = warp_uniform(token);
    int query_tile = token * shape.head_tiles;
    int head_tile = 0;
    float* target = out + token * stride + tile * kTileKeys + place.reported_row();
    HeadSums sum = {};
    const auto start = [&](float(&d)[32]) {
      start_products<kFormat>(d, keys, shared_address(memory.queries) + query_tile * kQueryTileBytes);
    };
    const auto step = [&](float(&now)[32], float(&next)[32]) {
      HeadWeights weights;
      load_weights(memory.weights + query_tile * kTileHeads + place.column * 16, weights);
      ++query_tile;
      const bool more = query_tile < query_tiles;
      wgmma_wait<0>();
      wgmma_hold(now);
      hold_keys(keys);
      if (more) start(next);
      add_heads<Operand::kF16>(now, weights, sum);
      if (++head_tile == shape.head_tiles) {
        const float score = finish_score(sum, factor);
        if (place.reports()) *target = score;
        target += stride;
        head_tile = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0.0F;
      }
      return more;
    };
    float d[2][32];
    start(d[0]);
#pragma unroll 1
    while (step(d[0], d[1]) && step(d[1], d[0])) {
    }
    wgmma_wait<0>();
  }
}

// Fills the ring with the part's tiles. One warp: its lanes look up where 32 tiles lie, then copy them in turn.
template <IndexKeyFormat kFormat>
__device__ inline void produce_tiles(const IndexerTopkParams& p, const ScoreRuns& runs, const ScorePart& part,
                                     const ScoreShape& shape, std::uint32_t ring, const ScoreControl& control) {
  using Layout = typename KeyOperand<kFormat>::Layout;
  constexpr std::uint32_t kCodeBytes = kTileKeys * Layout::kDataBytes;
  constexpr std::uint32_t kScaleBytes = kTileKeys * Layout::kScaleBytes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint64_t policy = evict_first_policy();
  const auto tiles_of_block = static_cast<std::uint32_t>(p.keys.shape.rows) / kTileKeys;
  const bool together = tiles_of_block == 1;  // codes and scales lie side by side
  ScoreRun run = part.run;
  std::int32_t number = -part.first_tile;  // number in the block's part of the run's tile 0
  std::int64_t table = p.step.sequence_slot[run.sequence] * p.keys.table_stride;
  int stage = 0;
  std::uint32_t phase = 1;  // the ring starts empty
#pragma unroll 1
  for (std::int32_t first = 0; first < part.tiles; first += 32) {
    const std::int32_t mine = min(first + lane, part.tiles - 1);
#pragma unroll 1
    while (mine >= number + run.tiles) {
      number += run.tiles;
      run = runs.run_after(run);
      table = p.step.sequence_slot[run.sequence] * p.keys.table_stride;
    }
    const auto tile = static_cast<std::uint32_t>(mine - number);
    const std::uint32_t column = tile / tiles_of_block;
    const auto row = static_cast<std::int32_t>((tile - column * tiles_of_block) * kTileKeys);
    const std::byte* const block = p.keys.blocks + p.keys.block_table[table + column] * p.keys.shape.block_bytes;
    const std::int32_t count = min(part.tiles - first, 32);
#pragma unroll 1
    for (std::int32_t i = 0; i < count; ++i) {
      const std::uint32_t full = shared_address(control.full + stage);
      barrier_wait(shared_address(control.empty + stage), phase);
      if (lane == i) {
        const std::uint32_t target = ring + static_cast<std::uint32_t>(stage * shape.stage_bytes);
        barrier_arrive_expect(full, kCodeBytes + kScaleBytes);
        copy_bulk(target, block + p.keys.shape.data_offset(row), together ? kCodeBytes + kScaleBytes : kCodeBytes, full,
                  policy);
        if (kScaleBytes > 0 && !together) {
          copy_bulk(target + kCodeBytes, block + p.keys.shape.scale_offset(row), kScaleBytes, full, policy);
        }
      }
      __syncwarp();
      if (++stage == shape.stages) {
        stage = 0;
        phase ^= 1;
      }
    }
  }
}

#endif  // sm_90a

// Grid: any number of blocks, one on a multiprocessor. Cache blocks have a multiple of 64 rows. kSingle: runs
// have one token, heads fit one tile.
template <IndexKeyFormat kFormat, bool kSingle>
__global__ void __launch_bounds__(kWgmmaScoreThreads, 1)
    wgmma_score_kernel(const __grid_constant__ IndexerTopkParams p, const __grid_constant__ ScoreBatch batch,
                       const __grid_constant__ ScoreShape shape) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) std::byte score_shared[];
  ScoreMemory memory;
  memory.queries = score_shared;
  memory.ring = memory.queries + batch.group_tokens * shape.head_tiles * kQueryTileBytes;
  memory.weights = reinterpret_cast<float*>(memory.ring + shape.stages * shape.stage_bytes);
  memory.control = reinterpret_cast<ScoreControl*>(memory.weights + batch.group_tokens * shape.head_tiles * kTileHeads);
  ScoreControl& control = *memory.control;
  const int thread = static_cast<int>(threadIdx.x);
  init_score_barriers(control, shape);
  allow_dependents();
  // Positions and sequences are no kernel's work: there is no need to wait for them.
  const ScoreRuns runs(p, batch);
  find_score_part<kWgmmaScoreThreads>(runs, batch.tokens, control.warp_total, control.part);
  wait_for_predecessors();
  __syncthreads();
  const ScorePart part = control.part;
  if (part.tiles == 0) return;
  if (thread >= kScoreWorkers) {
    give_registers<32>();
    if (thread < kScoreWorkers + 32) {
      produce_tiles<kFormat>(p, runs, part, shape, shared_address(memory.ring), control);
    }
    return;
  }
  take_registers<160>();
  RingReader ring(memory, shape);
  const QueryLoader<kFormat> loader(p, shape.head_tiles);
  std::int32_t number = 0;  // number in the block's part of the first tile in hand
  std::int32_t tile = part.first_tile;
  ScoreRun run = part.run;
  while (true) {
    if constexpr (kSingle) {
      loader.template load<1>(batch.first_token + run.first, 1, memory.queries, memory.weights);
    } else {
      if (thread < run.end - run.first) control.rows[thread] = runs.rows(run.first + thread);
      loader.template load<4>(batch.first_token + run.first, run.end - run.first, memory.queries, memory.weights);
    }
    fence_async_proxy();
    sync_workers();
    const std::int32_t count = min(run.tiles - tile, part.tiles - number);
    // The warpgroup's first tile of these: its number is the warpgroup's modulo their count.
    const std::int32_t first = tile + (thread / 128 + kScoreGroups - number % kScoreGroups) % kScoreGroups;
    float* const out = batch.scores + run.first * batch.stride;
    if constexpr (kSingle) {
      score_single<kFormat>(memory, ring, first, tile + count, out);
    } else {
      score_run<kFormat>(shape, memory, ring, first, tile + count, run.end - run.first, out, batch.stride);
    }
    number += count;
    if (number >= part.tiles) break;
    run = runs.run_after(run);
    tile = 0;
    sync_workers();  // the queries are read no more
  }
#else
  __trap();  // chosen for this architecture alone
#endif
}

}  // namespace dsv4rt::cuda
