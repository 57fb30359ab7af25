// A consumer of the tile kernel: a warpgroup that multiplies the stages of one row tile, adds up segments and
// stores outputs.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/linear/tile_shape.cuh"
#include "backend/cuda/kernels/linear/widen.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

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
    __syncwarp();  // all lanes have read it
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
      wgmma_wait<1>();
      if (i > 0) release(earlier_stage(1));
      ring.advance(p.stages);
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
    if (stages > 0) release(earlier_stage(1));
  }

  static constexpr int kWideValues = kStageInputs / 4;  // registers of the A operand for a stage

  // Widens a stage while the products of the one before still run, then multiplies it.
  __device__ __forceinline__ void step_wide(float (&sum)[kValues], std::uint32_t (&a)[kWideValues], float weight_scale,
                                            bool first) {
    const std::uint32_t factors = widening_factors(weight_scale);
    wait_full();
    const std::uint32_t at = weights_at(ring.stage, 4096) + (warp * 32 + lane) * 16;
    const uint4 codes[2] = {load_shared_uint4(at), load_shared_uint4(at + kWarpgroup * 16)};
    const std::uint32_t inputs = inputs_at(ring.stage);
    ring.advance(p.stages);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      widen(codes[i].x, codes[i].y, factors, a + 8 * i);
      widen(codes[i].z, codes[i].w, factors, a + 8 * i + 4);
    }
    wgmma_wait<0>();
    if (!first) release(earlier_stage(2));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) Mma::bf16_registers(sum, a + 4 * k, wgmma_tile(inputs, k), true);
    wgmma_commit();
  }

  // `scales` begins at the segment; two stages share one.
  __device__ __forceinline__ void sum_wide(float (&sum)[kValues], const float* scales, float first_scales, int blocks) {
    std::uint32_t even[kWideValues], odd[kWideValues];
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
    for (; block < blocks; ++block) {
      const float weight_scale = scale_of_block();
      step_wide(sum, even, weight_scale, block == 0);
      step_wide(sum, odd, weight_scale, false);
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
    release(earlier_stage(1));
  }

  // A segment of this warpgroup's row tile.
  struct Segment {
    const TileProblem* q;
    int row_tile;
    int number;
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
    sum_wide(sum, scales, first_scales, blocks);
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
    if (!q.float_output && q.wide_stores) {
      store_tile_staged(q, row_tile, first_token, sum);
      return;
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
    return {&q, item.row_group * kRowTiles + tile, 0};
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

}  // namespace dsv4rt::cuda
