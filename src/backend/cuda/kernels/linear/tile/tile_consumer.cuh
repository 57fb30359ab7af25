// A consumer of the tile kernel: a warpgroup that multiplies the stages of one row tile, adds up segments and
// stores outputs.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/linear/shared/widen.cuh"
#include "backend/cuda/kernels/linear/tile/tile_memory.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokens, int kRowTiles>
struct TileConsumer {
  using Shape = TileShape<kTokens, kRowTiles>;
  using Mma = Wgmma<kTokens>;
  static constexpr int kValues = Shape::kValues;

  const LinearParams& p;
  const TileMemory& m;
  int tile;  // number among the block's row tiles
  int warp;  // number in the warpgroup
  int lane;
  unsigned rank;  // rank of the block in its cluster
  int blocks;     // number of blocks in the cluster
  Ring ring;
  float scales_ahead = 0.0F;  // the first of the coming segment, a block a lane
  std::uint32_t exchange_parity = 0;

  __device__ std::uint32_t weights_at(int stage, int tile_bytes) const {
    return m.stages + stage * p.stage_bytes + tile * tile_bytes;
  }
  __device__ std::uint32_t inputs_at(int stage) const { return m.stages + stage * p.stage_bytes + p.input_offset; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(m.full + ring.stage * 8, ring.parity); }
  // Every lane arrives for what it has read itself.
  __device__ __forceinline__ void release(int stage) const { barrier_arrive(m.empty + stage * 8); }

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
    for (int i = 0; i < stages; ++i) {
      wait_full();
      const std::uint32_t a = weights_at(ring.stage, 8192);
      const std::uint32_t b = inputs_at(ring.stage);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) Mma::bf16(sum, wgmma_tile(a, k), wgmma_tile(b, k), k > 0 || i > 0);
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
  __device__ __forceinline__ void step_wide(float (&sum)[kValues], std::uint32_t (&a)[kWideValues],
                                            std::uint32_t factors, bool first) {
    wait_full();
    const std::uint32_t at = weights_at(ring.stage, stage_tile_bytes(TileKind::kFp8)) + (warp * 32 + lane) * 16;
    const std::uint32_t inputs = inputs_at(ring.stage);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 codes = load_shared_uint4(at + i * kWarpgroup * 16);
      widen(codes.x, codes.y, factors, a + 8 * i);
      widen(codes.z, codes.w, factors, a + 8 * i + 4);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) Mma::bf16_registers(sum, a + 4 * k, wgmma_tile(inputs, k), k > 0 || !first);
    wgmma_commit();
    wgmma_wait<1>();
    if (!first) release(earlier_stage(1));
    ring.advance(p.stages);
  }

  // `scales` begins at the segment; two stages share one.
  __device__ __forceinline__ void sum_wide(float (&sum)[kValues], const float* scales, float first_scales, int blocks) {
    std::uint32_t even[kWideValues], odd[kWideValues];
    float chunk = first_scales;
    float next_chunk = 0.0F;
    for (int block = 0; block < blocks; ++block) {
      if (block % 32 == 0) {
        if (block > 0) chunk = next_chunk;
        next_chunk = lane_scales(scales, block + 32, blocks);
      }
      const std::uint32_t factors = widening_factors(__shfl_sync(0xffffffffU, chunk, block % 32));
      step_wide(sum, even, factors, block == 0);
      step_wide(sum, odd, factors, false);
    }
    wgmma_wait<0>();
    wgmma_hold(sum);
    release(earlier_stage(1));
  }

  // A segment of this warpgroup's row tile.
  struct Segment {
    const LinearProblem* q;
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
    const LinearProblem& q = *s.q;
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
  __device__ __forceinline__ void store_quad(const LinearProblem& q, int row, int token, float4 v) const {
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
  __device__ __forceinline__ void store_tile(const LinearProblem& q, int row_tile, int first_token,
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

  // 16 outputs of 16 tokens as BF16, a token's outputs side by side. Lane l names where row l % 8 of matrix l / 8 goes:
  // 8 tokens, outputs 0 .. 7 and 8 .. 15, then the next 8 tokens.
  __device__ __forceinline__ static void store_transposed(std::uint32_t at, float4 low, float4 high) {
    const auto pack = [](float first, float second) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
      return *reinterpret_cast<const std::uint32_t*>(&pair);
    };
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(at),
                 "r"(pack(low.x, low.y)), "r"(pack(low.z, low.w)), "r"(pack(high.x, high.y)), "r"(pack(high.z, high.w))
                 : "memory");
  }

  // BF16 through shared memory, so that a token's 64 outputs leave as one line. Staged [token][64], 16-byte unit
  // u of token t at u ^ (t % 8).
  __device__ __forceinline__ void store_tile_staged(const LinearProblem& q, int row_tile, int first_token,
                                                    const float (&sum)[kValues]) const {
    const std::uint32_t staged = m.sums + tile * p.sum_bytes;
    sync_warpgroup();
#pragma unroll
    for (int j = 0; j < kTokens / 8; j += 2) {
      const int token = 8 * (j + lane / 16) + lane % 8;
      const int unit = 2 * warp + (lane / 8) % 2;
      const std::uint32_t at = staged + token * 128 + ((unit ^ (token & 7)) << 4);
      store_transposed(at, quad(sum, j), quad(sum, j + 1));
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

  // In a cluster a block owns the rows of 4 / blocks warps. Block 0 has the first segments and adds them up; the sums
  // of the others reach the owner one by one, in [segment of the others][own warp][quad][lane] of 16 bytes. Where an
  // owner would find the last segment of its own, which its threads still hold, it finds the total of block 0.
  static constexpr int kQuads = kValues / 4;
  static constexpr int kWarpSumBytes = kQuads * 512;
  __device__ __forceinline__ int own_warps() const {
    return kRowTileWarps / blocks;
  }
  __device__ __forceinline__ int owner() const {
    return warp / own_warps();
  }
  __device__ __forceinline__ int share() const {
    return p.segments / blocks;
  }

  // The sums of a segment that block 0 does not have, in the block that owns the warp's rows.
  __device__ __forceinline__ std::uint32_t sums_at(int segment) const {
    return m.sums + tile * p.sum_bytes + ((segment - share()) * own_warps() + warp % own_warps()) * kWarpSumBytes +
           lane * 16;
  }
  __device__ __forceinline__ static float4 quad(const float (&values)[kValues], int j) {
    return make_float4(values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3]);
  }
  __device__ __forceinline__ void keep(const float (&sum)[kValues], int segment) const {
#pragma unroll
    for (int j = 0; j < kQuads; ++j) store_shared(sums_at(segment) + j * 512, quad(sum, j));
  }
  __device__ __forceinline__ void send(const float (&sum)[kValues], int segment) const {
    const auto target = static_cast<unsigned>(owner());
    const std::uint32_t sent = block_address(m.sent + tile * 8, target);
    const std::uint32_t to = block_address(sums_at(segment), target);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) store_cluster(to + j * 512, quad(sum, j), sent);
  }
  __device__ __forceinline__ static void add(float (&total)[kValues], const float (&sum)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) total[i] += sum[i];
  }

  // What the other blocks send: every segment but the own and the first ones, and the total of those.
  __device__ __forceinline__ void expect_sums() const {
    if (warp != static_cast<int>(rank) * own_warps() || lane != 0) return;
    const int parts = rank == 0 ? p.segments - share() : p.segments - 2 * share() + 1;
    barrier_arrive_expect(m.sent + tile * 8, static_cast<std::uint32_t>(parts * own_warps() * kWarpSumBytes));
  }
  // The owner has taken what it got for the item before.
  __device__ __forceinline__ void wait_taken() const {
    barrier_wait_cluster(m.taken + tile * 8, exchange_parity ^ 1);
  }

  // total = all segments of the own rows; in block 0 it holds the first ones already.
  __device__ __forceinline__ void receive(float (&total)[kValues], const float (&sum)[kValues]) const {
    const int last = share() * (static_cast<int>(rank) + 1) - 1;  // own segment
    const auto load = [&](int segment, int j) { return load_shared_float4(sums_at(segment) + j * 512); };
    barrier_wait_cluster(m.sent + tile * 8, exchange_parity);
    if (rank > 0) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4 first = load(last, j);
        total[4 * j] = first.x, total[4 * j + 1] = first.y, total[4 * j + 2] = first.z, total[4 * j + 3] = first.w;
      }
    }
    for (int segment = share(); segment < p.segments; ++segment) {
      if (segment == last) {
        add(total, sum);
        continue;
      }
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4 part = load(segment, j);
        total[4 * j] += part.x, total[4 * j + 1] += part.y, total[4 * j + 2] += part.z, total[4 * j + 3] += part.w;
      }
    }
  }

  // Stores the own rows; the 32 bytes of a token as one piece, through the place of the sums.
  __device__ __forceinline__ void store_own(const LinearProblem& q, int row_tile, int first_token,
                                            const float (&total)[kValues]) const {
    const int row = row_tile * kRowTile + warp * 16;
    if (q.float_output || !q.wide_stores) {
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        store_quad(q, row + lane / 4, first_token + 8 * j + 2 * (lane % 4), quad(total, j));
      }
      return;
    }
    const std::uint32_t staged = sums_at(share()) - lane * 16;  // token t at 32 t
    __syncwarp();                                               // all lanes have read what lies there
#pragma unroll
    for (int j = 0; j < kQuads; j += 2) {
      store_transposed(staged + (8 * j + lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16, quad(total, j),
                       quad(total, j + 1));
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kQuads; j += 2) {
      const int token = first_token + 8 * j + lane / 2;
      if (token >= p.tokens) break;
      const uint4 values = load_shared_uint4(staged + j * 256 + lane * 16);
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(q.y) + token * q.y_stride + row + lane % 2 * 8) = values;
    }
  }

  __device__ __forceinline__ void run_item(Segment s, int first_token, const Segment next_item, bool last_item) {
    const int first = static_cast<int>(rank) * share();
    const bool owns = owner() == static_cast<int>(rank);
    float sum[kValues], total[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
      total[i] = -0.0F;  // adding to -0 leaves the first segment's sum as it is, zeros included
    }
    if (blocks > 1) expect_sums();
    for (int i = 0; i < share(); ++i) {
      const bool last = i + 1 == share();
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
      if (rank == 0) {
        add(total, sum);
      } else if (!owns) {
        if (i == 0) wait_taken();
        send(sum, s.number);
      } else if (!last) {
        keep(sum, s.number);
      }
    }
    if (blocks == 1) {
      store_tile(*s.q, s.row_tile, first_token, total);
      return;
    }
    if (owns) {
      receive(total, sum);
      store_own(*s.q, s.row_tile, first_token, total);
      __syncwarp();
      if (!last_item && lane < blocks) {
        barrier_arrive_cluster(block_address(m.taken + tile * 8, static_cast<unsigned>(lane)));
      }
    } else if (rank == 0) {
      wait_taken();
      send(total, share() * (owner() + 1) - 1);
    }
    exchange_parity ^= 1;
  }

  // This warpgroup's part of an item; its row tile may lie beyond the problem's last, as one beyond the item's does.
  __device__ __forceinline__ Segment segment_of(const LinearItem& item) const {
    const LinearProblem& q = p.problems[item.problem];
    return {&q, tile < q.item_tiles ? item.row_group * q.item_tiles + tile : q.row_tiles, 0};
  }
  __device__ __forceinline__ static bool present(const Segment s) {
    return s.row_tile < s.q->row_tiles;
  }

  __device__ __forceinline__ void run(int cluster, int clusters) {
    int index = item_of_round(0, cluster, clusters);
    if (index >= p.items) return;
    LinearItem item = linear_item(p, index);
    const int first = static_cast<int>(rank) * share();
    Segment s = segment_of(item);
    s.number = first;
    scales_ahead = first_scales(s);
    for (int round = 1;; ++round) {
      index = item_of_round(round, cluster, clusters);
      const bool last_item = index >= p.items;
      const LinearItem next_item = last_item ? item : linear_item(p, index);
      s = segment_of(item);
      Segment next = segment_of(next_item);
      if (present(s)) {
        run_item(s, item.token_tile * kTokens, next, last_item);
      } else {
        skip(segment_stage(p, *s.q, first + share()) - segment_stage(p, *s.q, first));
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
