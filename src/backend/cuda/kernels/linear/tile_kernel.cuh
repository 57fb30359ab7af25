// Linear layers on Hopper's wgmma: weights are the A operand (64 outputs a warpgroup), tokens the B
// operand (kTokens columns), both read from shared memory, where a producer warp keeps a ring of stages
// full. Weights do not depend on earlier kernels: the producer fetches the first ring of them while the
// previous kernel of the stream still runs.
//
// Order of accumulation, the same for every T, token position, grid and cluster:
//   * K is cut into `segments` parts of whole 128-input blocks, by the weight's shape alone;
//   * within a segment kFp8 forms each 128-input block in a chain of its own (the tensor core keeps about
//     14 bits in FP8 chains) and adds scale * block in input order in FP32; the other kinds are one chain;
//   * segments are added in order.
// The blocks of a cluster share the segments of an item, and each sends its sums to the block that owns the
// rows; a block alone sums them one after the other and parks the total in shared memory between.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/linear/tile_params.h"

namespace dsv4rt::cuda {

inline constexpr int kWarpgroup = 128;

// Sizes that host and device agree on.
template <int kTokens, int kRowTiles>
struct TileShape {
  static constexpr int kConsumers = kRowTiles * kWarpgroup;
  // Wide items need more registers than an even share: a whole producer warpgroup gives its own away.
  static constexpr bool kMovesRegisters = kTokens * kRowTiles >= 256;
  static constexpr int kThreads = kConsumers + (kMovesRegisters ? kWarpgroup : 32);
  // Narrow items: registers for three blocks an SM, which the compiler's bound of two gives.
  static constexpr int kMinBlocks = kTokens <= 64 && kRowTiles == 1 ? 2 : 1;
  static constexpr int kValues = kTokens / 2;  // accumulators of a thread
  static constexpr int kInputBytes = kTokens * kStageBytesOfInput;
  static constexpr int kScaleBytes = kTokens * 4;
  static constexpr int kBarrierBytes = 512;
  static constexpr int kAlignmentBytes = 1024;

  // Of a row tile; see TileParams::sum_bytes.
  static constexpr int sum_bytes(int segments, int cluster_blocks) {
    if (segments == 1) return kRowTile * kTokens * 2;
    return segments / (cluster_blocks > 1 ? cluster_blocks : segments) * kRowTile * kTokens * 4;
  }
};

struct TileItem {
  int problem;
  int row_group;
  int token_tile;
};

// Items of a problem go through bands of row groups, in each band token tile by token tile: blocks that run at
// the same time share weights and inputs in L2.
__device__ __forceinline__ TileItem tile_item(const TileParams& p, int index) {
  constexpr int kBand = 16;
  int problem = 0;
  while (problem + 1 < p.problem_count && p.problems[problem + 1].first_item <= index) ++problem;
  const TileProblem& q = p.problems[problem];
  const int local = index - q.first_item;
  const int band = local / (kBand * p.token_tiles);
  const int within = local - band * kBand * p.token_tiles;
  const int width = min(kBand, q.row_groups - band * kBand);
  return {problem, band * kBand + within % width, within / width};
}

// Items of one cluster: rounds go through the clusters forwards and backwards in turn, so that the one that
// had the largest item of a round gets the smallest of the next.
__device__ inline int tile_item_of_round(int round, int cluster, int clusters) {
  return round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
}

// First stage of a segment.
__device__ inline int segment_stage(const TileParams& p, const TileProblem& q, int segment) {
  const int block = q.scale_blocks * segment / p.segments;
  return q.kind == TileKind::kFp8 ? block : 2 * block;
}

struct Ring {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Shared-memory addresses.
struct TileMemory {
  std::uint32_t stages;
  std::uint32_t scales;  // [stage][kTokens] float
  std::uint32_t sums;    // [kRowTiles][sum_bytes]
  std::uint32_t full;    // [kMaxStages] barriers
  std::uint32_t empty;   // [kMaxStages]
  std::uint32_t sent;    // [kRowTiles]: all sums of the own rows have come
  std::uint32_t taken;   // [kRowTiles]: all blocks have taken what this block sent
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Walks the stages of this block's items.
struct StageCursor {
  const TileParams* p;
  int cluster, clusters, first_segment, end_segment;
  int round = 0;
  TileItem item{};
  int stage = 0, end = 0;
  bool valid = false;

  __device__ __forceinline__ void load_item() {
    const int index = tile_item_of_round(round, cluster, clusters);
    valid = index < p->items;
    if (!valid) return;
    item = tile_item(*p, index);
    const TileProblem& q = p->problems[item.problem];
    stage = segment_stage(*p, q, first_segment);
    end = segment_stage(*p, q, end_segment);
  }
  __device__ __forceinline__ void next() {
    if (++stage < end) return;
    ++round;
    load_item();
  }
};

template <int kTokens, int kRowTiles>
struct TileProducer {
  using Shape = TileShape<kTokens, kRowTiles>;
  const TileParams& p;
  const TileMemory& m;
  std::uint64_t weight_policy;

  __device__ __forceinline__ void load_weights(const StageCursor& at, int stage) const {
    const TileProblem& q = p.problems[at.item.problem];
    const int tile_bytes = stage_tile_bytes(q.kind);
    const int first_tile = at.item.row_group * kRowTiles;
    const int tiles = min(kRowTiles, q.row_tiles - first_tile);
    const int scale_tokens = min(kTokens, p.input_scale_stride - at.item.token_tile * kTokens);
    const int input_bytes = Shape::kInputBytes + (q.kind == TileKind::kFp8 ? scale_tokens * 4 : 0);
    const std::uint32_t barrier = m.full + stage * 8;
    barrier_arrive_expect(barrier, static_cast<std::uint32_t>(tiles * tile_bytes + input_bytes));
    const int stages = segment_stage(p, q, p.segments);
#pragma unroll
    for (int t = 0; t < kRowTiles; ++t) {
      if (t >= tiles) break;
      const std::int64_t offset = (std::int64_t{first_tile + t} * stages + at.stage) * tile_bytes;
      copy_bulk(m.stages + stage * p.stage_bytes + t * tile_bytes, q.codes + offset,
                static_cast<std::uint32_t>(tile_bytes), barrier, weight_policy);
    }
  }

  __device__ __forceinline__ void load_inputs(const StageCursor& at, int stage) const {
    const TileProblem& q = p.problems[at.item.problem];
    const std::uint32_t barrier = m.full + stage * 8;
    const int first_token = at.item.token_tile * kTokens;
    copy_box(m.stages + stage * p.stage_bytes + p.input_offset, &p.inputs[q.input], at.stage * stage_inputs(q.kind),
             first_token, barrier);
    if (q.kind == TileKind::kFp8) {
      const int scale_tokens = min(kTokens, p.input_scale_stride - first_token);
      copy_bulk(m.scales + stage * Shape::kScaleBytes,
                p.input_scales + std::int64_t{at.stage} * p.input_scale_stride + first_token,
                static_cast<std::uint32_t>(scale_tokens * 4), barrier, evict_normal_policy());
    }
  }

  __device__ __forceinline__ void run(StageCursor cursor) const {
    // The first ring: weights at once, inputs when the kernels before have written them.
    StageCursor ahead = cursor;
    int filled = 0;
    for (; filled < p.stages && ahead.valid; ++filled, ahead.next()) load_weights(ahead, filled);
    wait_for_predecessors();
    for (int i = 0; i < filled; ++i, cursor.next()) load_inputs(cursor, i);
    Ring ring;
    while (cursor.valid) {
      barrier_wait(m.empty + ring.stage * 8, ring.parity);
      load_weights(cursor, ring.stage);
      load_inputs(cursor, ring.stage);
      cursor.next();
      ring.advance(p.stages);
    }
  }
};

template <int kTokens, int kRowTiles>
struct TileConsumer {
  using Shape = TileShape<kTokens, kRowTiles>;
  using Mma = Wgmma<kTokens>;
  static constexpr int kValues = Shape::kValues;

  const TileParams& p;
  const TileMemory& m;
  int tile;  // of the block's row tiles
  int warp;  // of the warpgroup
  int lane;
  unsigned rank;  // of the block in its cluster
  int blocks;     // of the cluster
  Ring ring;
  float scales_ahead = 0.0F;  // the first of the coming segment, a block a lane
  std::uint32_t exchange_parity = 0;

  __device__ std::uint32_t weights_at(int stage, int tile_bytes) const {
    return m.stages + stage * p.stage_bytes + tile * tile_bytes;
  }
  __device__ std::uint32_t inputs_at(int stage) const { return m.stages + stage * p.stage_bytes + p.input_offset; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(m.full + ring.stage * 8, ring.parity); }
  __device__ __forceinline__ void release(int stage) const {
    if (lane == 0) barrier_arrive(m.empty + stage * 8);
  }

  __device__ __forceinline__ static void clear(float (&sum)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0F;
  }

  // Stages of a segment that a row tile beyond the problem's last does not need.
  __device__ __forceinline__ void skip(int stages) {
    for (int i = 0; i < stages; ++i) {
      wait_full();
      release(ring.stage);
      ring.advance(p.stages);
    }
  }

  // The scales of 32 blocks from `first` on, one a lane.
  __device__ __forceinline__ float lane_scales(const float* scales, int first, int blocks) const {
    return first + lane < blocks ? __ldg(scales + first + lane) : 0.0F;
  }

  // Two warpgroups take turns at the tensor cores: while one scales its block, the other multiplies.
  __device__ __forceinline__ void take_turn() const {
    asm volatile("bar.sync %0, 256;\n" ::"r"(4 + tile) : "memory");
  }
  __device__ __forceinline__ void give_turn() const {
    asm volatile("bar.arrive %0, 256;\n" ::"r"(5 - tile) : "memory");
  }

  // Blocks in flight at once. A block's chain has its own accumulators, so few tokens leave room for several.
  static constexpr int kBlocksInFlight = kTokens <= 16 ? 4 : kTokens == 32 ? 2 : 1;

  // Multiplies kCount blocks and adds them to sum in order.
  template <int kCount, bool kTurns>
  __device__ __forceinline__ void add_blocks(float (&sum)[kValues], float scales, int block) {
    float block_sum[kCount][kValues];
    int stage[kCount];
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
      wait_full();
      stage[g] = ring.stage;
      ring.advance(p.stages);
      if constexpr (kTurns) take_turn();
      const std::uint32_t a = weights_at(stage[g], 8192);
      const std::uint32_t b = inputs_at(stage[g]);
      wgmma_hold(block_sum[g]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        Mma::fp8(block_sum[g], wgmma_tile(a, k), wgmma_tile(b, k), k > 0);
        if (kTurns && k == 2) wgmma_commit();
      }
      wgmma_commit();
    }
#pragma unroll
    for (int g = 0; g < kCount; ++g) {
      const float weight_scale = __shfl_sync(0xffffffffU, scales, (block + g) % 32);
      const std::uint32_t input_scales = m.scales + stage[g] * Shape::kScaleBytes + lane % 4 * 8;
      float2 scale[kTokens / 8];
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        scale[j] = load_shared_float2(input_scales + j * 32);
        scale[j].x *= weight_scale;
        scale[j].y *= weight_scale;
      }
      if constexpr (kTurns) {
        wgmma_wait<1>();  // the last step fills the pipeline while the other warpgroup begins
        give_turn();
      }
      wait_groups<kCount>(g);
      wgmma_hold(block_sum[g]);
      __syncwarp();
      release(stage[g]);
#pragma unroll
      for (int j = 0; j < kTokens / 8; ++j) {
        sum[4 * j] = __fmaf_rn(scale[j].x, block_sum[g][4 * j], sum[4 * j]);
        sum[4 * j + 1] = __fmaf_rn(scale[j].y, block_sum[g][4 * j + 1], sum[4 * j + 1]);
        sum[4 * j + 2] = __fmaf_rn(scale[j].x, block_sum[g][4 * j + 2], sum[4 * j + 2]);
        sum[4 * j + 3] = __fmaf_rn(scale[j].y, block_sum[g][4 * j + 3], sum[4 * j + 3]);
      }
    }
  }

  // Waits for groups 0 .. g of kCount.
  template <int kCount>
  __device__ __forceinline__ static void wait_groups(int g) {
    if (kCount - 1 - g == 3) wgmma_wait<3>();
    if (kCount - 1 - g == 2) wgmma_wait<2>();
    if (kCount - 1 - g == 1) wgmma_wait<1>();
    if (kCount - 1 - g == 0) wgmma_wait<0>();
  }

  // sum = the segment's scaled blocks, added in input order. `scales` begins at the segment.
  template <bool kTurns>
  __device__ __forceinline__ void sum_fp8(float (&sum)[kValues], const float* scales, float first_scales, int blocks) {
    clear(sum);
    float chunk = first_scales;
    float next_chunk = 0.0F;
    int block = 0;
    const auto begin_block = [&] {
      if (block % 32 != 0) return;
      if (block > 0) chunk = next_chunk;
      next_chunk = lane_scales(scales, block + 32, blocks);
    };
    for (; block + kBlocksInFlight <= blocks; block += kBlocksInFlight) {
      begin_block();
      add_blocks<kBlocksInFlight, kTurns>(sum, chunk, block);
    }
    if constexpr (kBlocksInFlight > 1) {
      for (; block < blocks; ++block) {
        begin_block();
        add_blocks<1, kTurns>(sum, chunk, block);
      }
    }
  }

  // Stages whose products may be under way at once where they form one chain. Short instructions need several.
  static constexpr int kStagesInFlight = kTokens <= 32 ? 4 : 1;

  // The stage `back` stages before the current one.
  __device__ __forceinline__ int earlier_stage(int back) const {
    return ring.stage >= back ? ring.stage - back : ring.stage - back + p.stages;
  }

  __device__ __forceinline__ void sum_bf16(float (&sum)[kValues], int stages) {
    clear(sum);
    for (int i = 0; i < stages; ++i) {
      wait_full();
      const std::uint32_t a = weights_at(ring.stage, 8192);
      const std::uint32_t b = inputs_at(ring.stage);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Mma::bf16(sum, wgmma_tile(a, k), wgmma_tile(b, k), true);
      wgmma_commit();
      wgmma_wait<kStagesInFlight>();
      if (i >= kStagesInFlight) release(earlier_stage(kStagesInFlight));
      ring.advance(p.stages);
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
    for (int back = min(stages, kStagesInFlight); back > 0; --back) release(earlier_stage(back));
  }

  // Two words of four codes: the A fragment of one step.
  __device__ __forceinline__ static void widen(std::uint32_t first, std::uint32_t second, std::uint32_t factor,
                                               std::uint32_t* a) {
    const auto place = [](std::uint32_t pair) {  // codes in bytes 1 and 3
      return (pair & 0x80008000U) | ((pair & 0x7f007f00U) >> 4);
    };
    const auto multiply = [factor](std::uint32_t values) {
      std::uint32_t product;
      asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(values), "r"(factor));
      return product;
    };
    a[0] = multiply(place(__byte_perm(first, 0, 0x1404)));
    a[1] = multiply(place(__byte_perm(first, 0, 0x3424)));
    a[2] = multiply(place(__byte_perm(second, 0, 0x1404)));
    a[3] = multiply(place(__byte_perm(second, 0, 0x3424)));
  }

  // Stages that are widened together.
  static constexpr int kWideStages = kTokens <= 16 ? 2 : 1;

  // Widens kWideStages stages while the products of those before still run, then multiplies them.
  __device__ __forceinline__ void step_wide(float (&sum)[kValues], std::uint32_t (&a)[16 * kWideStages],
                                            float weight_scale, bool first) {
    // The exponent and mantissa bits of a code, moved to their place in a BF16, read as the value times 2^-120.
    const std::uint32_t factor = __float_as_uint(weight_scale * 0x1p120F);
    const std::uint32_t factors = __byte_perm(factor, 0, 0x3232);
    std::uint32_t inputs[kWideStages];
    uint4 codes[2 * kWideStages];
#pragma unroll
    for (int i = 0; i < kWideStages; ++i) {
      wait_full();
      const std::uint32_t at = weights_at(ring.stage, 4096) + (warp * 32 + lane) * 16;
      codes[2 * i] = load_shared_uint4(at);
      codes[2 * i + 1] = load_shared_uint4(at + kWarpgroup * 16);
      inputs[i] = inputs_at(ring.stage);
      ring.advance(p.stages);
    }
#pragma unroll
    for (int i = 0; i < 2 * kWideStages; ++i) {
      widen(codes[i].x, codes[i].y, factors, a + 8 * i);
      widen(codes[i].z, codes[i].w, factors, a + 8 * i + 4);
    }
    wgmma_wait<0>();
    if (!first) {
#pragma unroll
      for (int i = 0; i < kWideStages; ++i) release(earlier_stage(2 * kWideStages - i));
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4 * kWideStages; ++k) {
      Mma::bf16_registers(sum, a + 4 * k, wgmma_tile(inputs[k / 4], k % 4), true);
    }
    wgmma_commit();
  }

  // `scales` begins at the segment; two stages share one.
  __device__ __forceinline__ void sum_wide(float (&sum)[kValues], const float* scales, float first_scales, int blocks) {
    std::uint32_t even[16 * kWideStages], odd[16 * kWideStages];
    clear(sum);
    float chunk = first_scales;
    float next_chunk = 0.0F;
    int block = 0;
    const auto scale_of_block = [&] {
      if (block % 32 == 0) {
        if (block > 0) chunk = next_chunk;
        next_chunk = lane_scales(scales, block + 32, blocks);
      }
      return __shfl_sync(0xffffffffU, chunk, block % 32);
    };
    if constexpr (kWideStages == 2) {
      for (; block + 1 < blocks; ++block) {
        step_wide(sum, even, scale_of_block(), block == 0);
        ++block;
        step_wide(sum, odd, scale_of_block(), false);
      }
      if (block < blocks) step_wide(sum, even, scale_of_block(), block == 0);
    } else {
      for (; block < blocks; ++block) {
        const float weight_scale = scale_of_block();
        step_wide(sum, even, weight_scale, block == 0);
        step_wide(sum, odd, weight_scale, false);
      }
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
#pragma unroll
    for (int i = 0; i < kWideStages; ++i) release(earlier_stage(kWideStages - i));
  }

  // A segment of this warpgroup's row tile.
  struct Segment {
    const TileProblem* q;
    int row_tile;
    int number;
    bool turns;  // both row tiles of the block are present
  };

  // The segment's first scales, fetched ahead of time: they come from memory that nothing else touched.
  __device__ __forceinline__ float first_scales(const Segment s) const {
    if (s.q->kind == TileKind::kBf16 || !present(s)) return 0.0F;
    const int first = s.q->scale_blocks * s.number / p.segments;
    const int blocks = s.q->scale_blocks * (s.number + 1) / p.segments - first;
    return lane_scales(s.q->scales + std::int64_t{s.row_tile} * s.q->scale_blocks + first, 0, blocks);
  }

  __device__ __forceinline__ void sum_segment(float (&sum)[kValues], const Segment s, float first_scales) {
    const TileProblem& q = *s.q;
    const int first = q.scale_blocks * s.number / p.segments;
    const int blocks = q.scale_blocks * (s.number + 1) / p.segments - first;
    const float* scales = q.scales + std::int64_t{s.row_tile} * q.scale_blocks + first;
    if (q.kind == TileKind::kBf16) {
      sum_bf16(sum, 2 * blocks);
      return;
    }
    if (q.kind == TileKind::kFp8Wide) {
      sum_wide(sum, scales, first_scales, blocks);
      return;
    }
    if constexpr (kRowTiles == 2) {
      if (s.turns) {
        if (tile == 1) give_turn();
        sum_fp8<true>(sum, scales, first_scales, blocks);
        if (tile == 0) take_turn();  // the last turn that the other gave
        return;
      }
    }
    sum_fp8<false>(sum, scales, first_scales, blocks);
  }

  __device__ __forceinline__ void sync_warpgroup() const {
    asm volatile("bar.sync %0, 128;\n" ::"r"(1 + tile) : "memory");
  }

  // Accumulators 4 j .. 4 j + 3 of a thread whose first output is `row`.
  __device__ __forceinline__ void store_quad(const TileProblem& q, int row, int token, float4 v) const {
    const auto put = [&](int at_row, int at_token, float value) {
      if (at_token >= p.tokens) return;
      const std::int64_t at = at_token * q.y_stride + at_row;
      if (q.float_output) {
        static_cast<float*>(q.y)[at] = value;
      } else {
        static_cast<__nv_bfloat16*>(q.y)[at] = __float2bfloat16_rn(value);
      }
    };
    put(row, token, v.x);
    put(row, token + 1, v.y);
    put(row + 8, token, v.z);
    put(row + 8, token + 1, v.w);
  }

  // A whole row tile from its accumulators.
  __device__ __forceinline__ void store_tile(const TileProblem& q, int row_tile, int first_token,
                                             const float (&sum)[kValues]) const {
    if constexpr (kTokens >= 16) {
      if (!q.float_output && q.wide_stores) {
        store_tile_staged(q, row_tile, first_token, sum);
        return;
      }
    }
    const int row = row_tile * kRowTile + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
      store_quad(q, row, first_token + 8 * j + 2 * (lane % 4),
                 make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
    }
  }

  // BF16 through shared memory, so that a token's 64 outputs leave as one line. Staged [token][64], 16-byte unit
  // u of token t at u ^ (t % 8).
  __device__ __forceinline__ void store_tile_staged(const TileProblem& q, int row_tile, int first_token,
                                                    const float (&sum)[kValues]) const {
    const std::uint32_t staged = m.sums + tile * p.sum_bytes;
    sync_warpgroup();
    const auto pack = [](float low, float high) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
      return *reinterpret_cast<const std::uint32_t*>(&pair);
    };
#pragma unroll
    for (int j = 0; j < kTokens / 8; j += 2) {
      // Lane l names row l % 8 of matrix l / 8: tokens 8 j .., outputs 0 .. 7 and 8 .. 15, then the next 8 tokens.
      const int token = 8 * (j + lane / 16) + lane % 8;
      const int unit = 2 * warp + (lane / 8) % 2;
      const std::uint32_t at = staged + token * 128 + ((unit ^ (token & 7)) << 4);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at),
                   "r"(pack(sum[4 * j], sum[4 * j + 1])), "r"(pack(sum[4 * j + 2], sum[4 * j + 3])),
                   "r"(pack(sum[4 * j + 4], sum[4 * j + 5])), "r"(pack(sum[4 * j + 6], sum[4 * j + 7]))
                   : "memory");
    }
    sync_warpgroup();
    const int unit = lane % 8;
    auto* y = static_cast<__nv_bfloat16*>(q.y) + row_tile * kRowTile + unit * 8;
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) {
      const int token = 16 * i + warp * 4 + lane / 8;
      if (first_token + token >= p.tokens) break;
      const uint4 values = load_shared_uint4(staged + token * 128 + ((unit ^ (token & 7)) << 4));
      *reinterpret_cast<uint4*>(y + (first_token + token) * q.y_stride) = values;
    }
    sync_warpgroup();
  }

  // Own thread's part of the parked total, 16 bytes at a time.
  __device__ std::uint32_t parked(int quad) const {
    return m.sums + tile * p.sum_bytes + (quad * kWarpgroup + warp * 32 + lane) * 16;
  }

  // sum = parked total + sum.
  __device__ __forceinline__ void add_parked(float (&sum)[kValues]) const {
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
      const float4 before = load_shared_float4(parked(j));
      sum[4 * j] = before.x + sum[4 * j];
      sum[4 * j + 1] = before.y + sum[4 * j + 1];
      sum[4 * j + 2] = before.z + sum[4 * j + 2];
      sum[4 * j + 3] = before.w + sum[4 * j + 3];
    }
  }
  __device__ __forceinline__ void park(const float (&sum)[kValues]) const {
#pragma unroll
    for (int j = 0; j < kValues / 4; ++j) {
      store_shared(parked(j), make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]));
    }
  }

  // In a cluster each block owns the rows of 4 / blocks warps; it receives [segment][own warp][quad][lane] of 16 bytes.
  static constexpr int kQuads = kValues / 4;
  __device__ __forceinline__ int own_warps() const {
    return kRowTileWarps / blocks;
  }

  __device__ __forceinline__ void expect_sums() const {
    if (warp != 0 || lane != 0) return;
    barrier_arrive_expect(m.sent + tile * 8, static_cast<std::uint32_t>(p.segments * own_warps() * kQuads * 512));
  }

  // Sends a segment's sums to the block that owns this warp's rows.
  __device__ __forceinline__ void send(const float (&sum)[kValues], int segment) const {
    const auto target = static_cast<unsigned>(warp / own_warps());
    const std::uint32_t sent = block_address(m.sent + tile * 8, target);
    const std::uint32_t to = block_address(m.sums + tile * p.sum_bytes, target) +
                             ((segment * own_warps() + warp % own_warps()) * kQuads * 32 + lane) * 16;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      store_cluster(to + j * 512, make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]), sent);
    }
  }

  // Adds up the own rows' segments.
  __device__ __forceinline__ void store_received(const TileProblem& q, int row_tile, int first_token) const {
    barrier_wait_cluster(m.sent + tile * 8, exchange_parity);
    for (int i = warp; i < own_warps() * kQuads; i += kRowTileWarps) {
      const std::uint32_t from = m.sums + tile * p.sum_bytes + (i * 32 + lane) * 16;
      float4 total = load_shared_float4(from);
      for (int segment = 1; segment < p.segments; ++segment) {
        const float4 part = load_shared_float4(from + segment * own_warps() * kQuads * 512);
        total.x += part.x;
        total.y += part.y;
        total.z += part.z;
        total.w += part.w;
      }
      const int row_warp = static_cast<int>(rank) * own_warps() + i / kQuads;
      store_quad(q, row_tile * kRowTile + row_warp * 16 + lane / 4, first_token + 8 * (i % kQuads) + 2 * (lane % 4),
                 total);
    }
  }

  __device__ __forceinline__ void run_item(Segment s, int first_token, const Segment next_item, bool last_item) {
    const int share = p.segments / blocks;
    const int first = static_cast<int>(rank) * share;
    float sum[kValues];
    if (blocks > 1) expect_sums();
    for (int i = 0; i < share; ++i) {
      const bool last = i + 1 == share;
      Segment next = next_item;
      next.number = first;
      if (!last) {
        next = s;
        next.number = first + i + 1;
      }
      const float next_scales = first_scales(next);
      s.number = first + i;
      sum_segment(sum, s, scales_ahead);
      scales_ahead = next_scales;
      if (blocks > 1) {
        if (i == 0) barrier_wait_cluster(m.taken + tile * 8, exchange_parity ^ 1);  // of the item before
        send(sum, s.number);
      } else {
        if (i > 0) add_parked(sum);
        if (!last) park(sum);
      }
    }
    if (blocks == 1) {
      store_tile(*s.q, s.row_tile, first_token, sum);
      return;
    }
    store_received(*s.q, s.row_tile, first_token);
    exchange_parity ^= 1;
    if (last_item) return;
    __syncwarp();
    if (lane < blocks) barrier_arrive_cluster(block_address(m.taken + tile * 8, static_cast<unsigned>(lane)));
  }

  // This warpgroup's part of an item; its row tile may lie beyond the problem's last.
  __device__ __forceinline__ Segment segment_of(const TileItem& item) const {
    const TileProblem& q = p.problems[item.problem];
    return {&q, item.row_group * kRowTiles + tile, 0, (item.row_group + 1) * kRowTiles <= q.row_tiles};
  }
  __device__ __forceinline__ static bool present(const Segment s) {
    return s.row_tile < s.q->row_tiles;
  }

  __device__ __forceinline__ void run(int cluster, int clusters) {
    int index = tile_item_of_round(0, cluster, clusters);
    if (index >= p.items) return;
    TileItem item = tile_item(p, index);
    const int share = p.segments / blocks;
    const int first = static_cast<int>(rank) * share;
    Segment s = segment_of(item);
    s.number = first;
    scales_ahead = first_scales(s);
    for (int round = 1;; ++round) {
      index = tile_item_of_round(round, cluster, clusters);
      const bool last_item = index >= p.items;
      const TileItem next_item = last_item ? item : tile_item(p, index);
      s = segment_of(item);
      Segment next = segment_of(next_item);
      if (present(s)) {
        run_item(s, item.token_tile * kTokens, next, last_item);
      } else {
        skip(segment_stage(p, *s.q, first + share) - segment_stage(p, *s.q, first));
        next.number = first;
        scales_ahead = first_scales(next);
      }
      if (last_item) return;
      item = next_item;
    }
  }
};

#endif  // sm_90a

// Grid: any number of clusters of a divisor of `segments` blocks. Dynamic shared memory: tile_shared_bytes.
template <int kTokens, int kRowTiles>
__global__ __launch_bounds__(
    TileShape<kTokens, kRowTiles>::kThreads,
    TileShape<kTokens, kRowTiles>::kMinBlocks) void linear_tile_kernel(const __grid_constant__ TileParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = TileShape<kTokens, kRowTiles>;
  allow_dependents();
  extern __shared__ char tile_memory[];
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile_memory));
  TileMemory m;
  m.stages = (base + 1023U) & ~1023U;
  m.sums = m.stages + p.stages * p.stage_bytes;
  m.scales = m.sums + kRowTiles * p.sum_bytes;
  m.full = m.scales + p.stages * Shape::kScaleBytes;
  m.empty = m.full + kMaxStages * 8;
  m.sent = m.empty + kMaxStages * 8;
  m.taken = m.sent + kRowTiles * 8;

  const auto blocks = static_cast<int>(cluster_blocks());
  const unsigned rank = blocks > 1 ? cluster_rank() : 0;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;

  if (threadIdx.x == 0) {
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(m.full + i * 8, 1);
      barrier_init(m.empty + i * 8, kRowTiles * kRowTileWarps);
    }
    for (int t = 0; t < kRowTiles; ++t) {
      barrier_init(m.sent + t * 8, 1);
      barrier_init(m.taken + t * 8, static_cast<unsigned>(blocks * kRowTileWarps));
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (blocks > 1) cluster_arrive_relaxed();  // own barriers are ready

  const int cluster = static_cast<int>(blockIdx.x) / blocks;
  const int clusters = static_cast<int>(gridDim.x) / blocks;
  if (warp >= kRowTiles * kRowTileWarps) {
    if constexpr (Shape::kMovesRegisters) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;\n");
    if (warp == kRowTiles * kRowTileWarps && lane == 0) {
      const int share = p.segments / blocks;
      StageCursor cursor{&p, cluster, clusters, static_cast<int>(rank) * share, static_cast<int>(rank + 1) * share};
      cursor.load_item();
      const TileProducer<kTokens, kRowTiles> producer{
          p, m, p.token_tiles == 1 ? evict_first_policy() : evict_normal_policy()};
      producer.run(cursor);
    } else {
      wait_for_predecessors();
    }
    __syncwarp();
    if (blocks > 1) cluster_wait();
  } else {
    if constexpr (Shape::kMovesRegisters) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;\n");
    if (blocks > 1) cluster_wait();  // everybody's are
    wait_for_predecessors();
    TileConsumer<kTokens, kRowTiles> consumer{p,      m,     warp / kRowTileWarps, warp % kRowTileWarps, lane, rank,
                                              blocks, Ring{}};
    consumer.run(cluster, clusters);
    __syncwarp();
  }
  if (blocks > 1) {  // other blocks may still write here
    cluster_arrive_relaxed();
    cluster_wait();
  }
#endif
}

}  // namespace dsv4rt::cuda
