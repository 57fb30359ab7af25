// A consumer of the tile kernel: a warpgroup that multiplies the stages of one row tile, or of a part of its segments,
// adds up segments and stores outputs.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/linear/shared/widen.cuh"
#include "backend/cuda/kernels/linear/tile/tile_memory.cuh"
#include "backend/cuda/kernels/linear/tile/tile_store.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokens, int kRowTiles, int kParts>
struct TileConsumer {
  using Shape = TileShape<kTokens, kRowTiles, kParts>;
  using Mma = Wgmma<kTokens>;
  static constexpr int kValues = Shape::kValues;

  const LinearParams& p;
  const TileMemory& m;
  int tile;  // number among the block's row tiles
  int part;  // number among the warpgroups that share a row tile
  int warp;  // number in the warpgroup
  int lane;
  unsigned rank;  // rank of the block in its cluster
  int blocks;     // number of blocks in the cluster
  Ring ring;
  LinearItem item{}, next_item{};
  float scales_ahead = 0.0F;  // the first of the coming segment, a block a lane
  Ring pass{};                // slots in which parts hand on sums, or blocks send them

  __device__ std::uint32_t weights_at(int stage, int tile_bytes) const {
    return m.stages + stage * p.stage_bytes + tile * tile_bytes;
  }
  __device__ std::uint32_t inputs_at(int stage) const { return m.stages + stage * p.stage_bytes + p.input_offset; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(m.full + ring.stage * 8, ring.parity); }
  // Every lane arrives for what it has read itself.
  __device__ __forceinline__ void release(int stage) const { barrier_arrive(m.empty + stage * 8); }

  // Stages that a row tile beyond the problem's last does not need.
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

  // A stage's weights are widened in one piece or two: beside sums and totals of 192 tokens registers are few.
  static constexpr int kPieces = Shape::kAddsSegments && kTokens > 160 ? 2 : 1;
  static constexpr int kPieceProducts = kStageInputs / kTileStepInputs / kPieces;
  static constexpr int kWideValues = 4 * kPieceProducts;  // registers of the A operands of a piece

  // Widens a piece of a stage while the products of the one before still run, then multiplies it.
  __device__ __forceinline__ void step_wide(float (&sum)[kValues], std::uint32_t (&a)[kWideValues],
                                            std::uint32_t factors, int piece, bool first) {
    if (piece == 0) wait_full();
    const std::uint32_t at = weights_at(ring.stage, stage_tile_bytes(TileKind::kFp8)) + (warp * 32 + lane) * 16;
    const std::uint32_t inputs = inputs_at(ring.stage);
#pragma unroll
    for (int i = 0; i < kPieceProducts / 2; ++i) {
      const uint4 codes = load_shared_uint4(at + (piece * kPieceProducts / 2 + i) * kWarpgroup * 16);
      widen(codes.x, codes.y, factors, a + 8 * i);
      widen(codes.z, codes.w, factors, a + 8 * i + 4);
    }
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kPieceProducts; ++k) {
      Mma::bf16_registers(sum, a + 4 * k, wgmma_tile(inputs, piece * kPieceProducts + k), k > 0 || piece > 0 || !first);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (piece == 0 && !first) release(earlier_stage(1));
    if (piece + 1 == kPieces) ring.advance(p.stages);
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
#pragma unroll
      for (int piece = 0; piece < kStagesPerScale * kPieces; piece += 2) {
        step_wide(sum, even, factors, piece % kPieces, block == 0 && piece == 0);
        step_wide(sum, odd, factors, (piece + 1) % kPieces, block == 0 && piece + 1 < kPieces);
      }
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
    const int first = segment_block(p, *s.q, s.number);
    const int blocks = segment_block(p, *s.q, s.number + 1) - first;
    return lane_scales(s.q->scales + std::int64_t{s.row_tile} * s.q->scale_blocks + first, 0, blocks);
  }

  __device__ __forceinline__ void sum_segment(float (&sum)[kValues], const Segment s, float first_scales) {
    const LinearProblem& q = *s.q;
    const int first = segment_block(p, q, s.number);
    const int blocks = segment_block(p, q, s.number + 1) - first;
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

  // One past the current item's last token. Columns from there on are of whatever lay in the ring.
  __device__ __forceinline__ int end_token() const {
    return min(p.tokens, (item.token_tile + 1) * p.item_tokens);
  }

  // Accumulators 4 j .. 4 j + 3 of a thread whose first output is `row`.
  __device__ __forceinline__ void store_quad(const LinearProblem& q, int row, int token, float4 v) const {
    const auto put = [&](int at_row, int at_token, float value) {
      if (at_token >= end_token()) return;
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

  __device__ __forceinline__ bool stores_boxes() const {
    return warp == 0 && elected_lane();
  }
  // Where a row tile of a block without a cluster is staged.
  __device__ __forceinline__ std::uint32_t staging() const {
    return m.sums + tile * p.sum_bytes;
  }

  // `staged`: where the tile may lie as BF16.
  __device__ __forceinline__ void store_tile(const LinearProblem& q, int row_tile, int first_token,
                                             std::uint32_t staged, const float (&sum)[kValues]) const {
    if (!q.float_output && q.wide_stores) {
      store_tile_staged(q, row_tile, first_token, staged, sum);
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
  __device__ __forceinline__ void store_tile_staged(const LinearProblem& q, int row_tile, int first_token,
                                                    std::uint32_t staged, const float (&sum)[kValues]) const {
    if (stores_boxes()) wait_stores_read<0>();  // the item before's box
    sync_warpgroup();
#pragma unroll
    for (int j = 0; j < kTokens / 8; j += 2) {
      const int token = 8 * (j + lane / 16) + lane % 8;
      const int unit = 2 * warp + (lane / 8) % 2;
      const std::uint32_t at = staged + token * 128 + ((unit ^ (token & 7)) << 4);
      store_transposed(at, quad(sum, j), quad(sum, j + 1));
    }
    if (q.boxed_output) {
      fence_async_proxy();
      sync_warpgroup();
      if (stores_boxes()) {
        store_box(&p.outputs[&q - p.problems], row_tile * kRowTile, first_token, staged);
        commit_stores();
      }
      return;
    }
    sync_warpgroup();
    const int unit = lane % 8;
    constexpr int kRows = kTokens / 16;  // rows of a lane
    uint4 rows[kRows];                   // all at once: no load waits for a store
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int token = 16 * i + warp * 4 + lane / 8;
      rows[i] = load_shared_uint4(staged + token * 128 + ((unit ^ (token & 7)) << 4));
    }
    sync_warpgroup();
    const int first = first_token + warp * 4 + lane / 8;
    const int end = end_token();
    auto* y = static_cast<__nv_bfloat16*>(q.y) + first * q.y_stride + row_tile * kRowTile + unit * 8;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + 16 * i < end) store_unit(y + 16 * i * q.y_stride, rows[i]);
    }
  }

  static constexpr int kQuads = kValues / 4;
  __device__ __forceinline__ static float4 quad(const float (&values)[kValues], int j) {
    return make_float4(values[4 * j], values[4 * j + 1], values[4 * j + 2], values[4 * j + 3]);
  }
  __device__ __forceinline__ static void add(float (&total)[kValues], const float (&sum)[kValues]) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) total[i] += sum[i];
  }

  // The own segments of an item: parts have neighbouring ones, blocks of row tiles every `blocks`-th.
  __device__ __forceinline__ int share() const {
    return p.segments / (blocks * kParts);
  }
  __device__ __forceinline__ int own_segment(int i) const {
    if constexpr (kParts > 1) return (static_cast<int>(rank) * kParts + part) * share() + i;
    return blocks * i + static_cast<int>(rank);
  }

  // Stores 16 outputs, from `row` on, of 8 kCount tokens: quads(0) .. quads(kCount - 1). The 32 bytes of a token leave
  // as one piece, through a place of the warp alone that all its lanes may have read before.
  template <int kCount, class Quads>
  __device__ __forceinline__ void store_rows(const LinearProblem& q, int row, int first_token, std::uint32_t staged,
                                             const Quads& quads) const {
    if (q.float_output || !q.wide_stores) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        store_quad(q, row + lane / 4, first_token + 8 * j + 2 * (lane % 4), quads(j));
      }
      return;
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kCount; j += 2) {  // token t at 32 t
      store_transposed(staged + (8 * j + lane / 16 * 8 + lane % 8) * 32 + lane / 8 % 2 * 16, quads(j), quads(j + 1));
    }
    __syncwarp();
    uint4 rows[kCount / 2];  // all at once: no load waits for a store
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) rows[i] = load_shared_uint4(staged + i * 512 + lane * 16);
    const int first = first_token + lane / 2;
    const int end = end_token();
    auto* y = static_cast<__nv_bfloat16*>(q.y) + first * q.y_stride + row + lane % 2 * 8;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (first + 16 * i < end) store_unit(y + 16 * i * q.y_stride, rows[i]);
    }
  }

  // What follows the `i`-th of the own segments of `s`'s item: the next of them, or, behind the last, the first of the
  // next item's.
  __device__ __forceinline__ Segment segment_after(const Segment& s, int i, const Segment& next_item) const {
    const bool last = i + 1 == share();
    Segment next = last ? next_item : s;
    next.number = own_segment(last ? 0 : i + 1);
    return next;
  }

  // Two blocks deal the segments of an item between them: block 0 has the even ones. Block i adds up row tile i, in
  // order. What the other block has of it comes segment by segment, to two slots by turns, as [warp][quad][lane] of 16
  // bytes. So sums take the same room for any number of segments, and behind the last products those of one segment
  // are on their way.
  __device__ __forceinline__ bool owns_rows() const {
    return blocks == 1 || tile == static_cast<int>(rank);
  }
  __device__ __forceinline__ std::uint32_t sums_at(int slot) const {
    return m.sums + slot * p.sum_bytes;
  }
  __device__ __forceinline__ std::uint32_t lane_sums_at(int slot) const {
    return sums_at(slot) + warp * kQuads * 512 + lane * 16;
  }
  __device__ __forceinline__ void expect_sums(int slot) const {
    barrier_arrive_expect(m.sent + slot * 8, kRowTile * kTokens * 4);
  }
  __device__ __forceinline__ void send(const float (&sum)[kValues]) {
    const unsigned target = rank ^ 1;
    barrier_wait_cluster(m.taken + pass.stage * 8, pass.parity ^ 1);
    const std::uint32_t sent = block_address(m.sent + pass.stage * 8, target);
    const std::uint32_t to = block_address(lane_sums_at(pass.stage), target);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) store_cluster(to + j * 512, quad(sum, j), sent);
    pass.advance(kSumSlots);
  }
  // Adds what has come to the current slot.
  __device__ __forceinline__ void receive(float (&total)[kValues]) const {
    barrier_wait_cluster(m.sent + pass.stage * 8, pass.parity);
    if (warp == 0 && lane == 0) expect_sums(pass.stage);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const float4 part = load_shared_float4(lane_sums_at(pass.stage) + j * 512);
      total[4 * j] += part.x, total[4 * j + 1] += part.y, total[4 * j + 2] += part.z, total[4 * j + 3] += part.w;
    }
  }
  // The other block may fill the current slot again. An arrival of readers suffices: what this warp has written there,
  // outputs on their way, has been read back.
  __device__ __forceinline__ void pass_slot() {
    __syncwarp();
    if (lane == 0) barrier_arrive_readers(block_address(m.taken + pass.stage * 8, rank ^ 1));
    pass.advance(kSumSlots);
  }
  // Before the block of a sender ends: its last sums have been taken, so that nobody arrives here any more.
  __device__ __forceinline__ void wait_taken() {
    for (int i = 0; i < kSumSlots; ++i, pass.advance(kSumSlots)) {
      barrier_wait_cluster(m.taken + pass.stage * 8, pass.parity ^ 1);
    }
  }

  __device__ __forceinline__ void run_item(Segment s, int first_token, const Segment next_item) {
    const bool owns = owns_rows();
    float sum[kValues], total[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
      total[i] = -0.0F;  // adding to -0 leaves the first segment's sum as it is, zeros included
    }
#pragma unroll 1
    for (int i = 0; i < share(); ++i) {
      const float next_scales = first_scales(segment_after(s, i, next_item));
      s.number = own_segment(i);
      sum_segment(sum, s, scales_ahead);
      scales_ahead = next_scales;
      if (!owns) {
        send(sum);
        continue;
      }
      // Of the other block: the segment in front.
      if (blocks > 1 && s.number > 0) {
        receive(total);
        if (s.number + 1 < p.segments) pass_slot();
      }
      add(total, sum);
    }
    if (!owns) return;
    if (blocks == 1) {
      store_tile(*s.q, s.row_tile, first_token, staging(), total);
      return;
    }
    if (rank == 0) receive(total);
    store_tile(*s.q, s.row_tile, first_token, sums_at(pass.stage), total);
    if (stores_boxes()) wait_stores_read<0>();
    pass_slot();
  }

  // Parts hand on the total of the segments so far, from the first part of block 0 to the last part of the last block,
  // a chunk of the row tile at a time, and each adds its own one or two segments. Chunks lie in slots, as
  // [warp][quad][lane] of 16 bytes. All of it is straight code for a part's place among them: what runs once waits for
  // its instructions.
  static constexpr int kChunkBytes = pass_chunk_bytes(kTokens);
  static constexpr int kChunkQuads = kQuads / kPassChunks;

  __device__ __forceinline__ void expect_total(int slot) const {
    barrier_arrive_expect(m.come + slot * 8, kChunkBytes);
  }
  // The warp's place in a slot.
  __device__ __forceinline__ std::uint32_t chunk_at(int slot) const {
    return m.sums + slot * kChunkBytes + warp * kChunkQuads * 512;
  }
  __device__ __forceinline__ void store_chunk(const float (&values)[kValues], int chunk) const {
#pragma unroll
    for (int j = 0; j < kChunkQuads; ++j) {
      store_shared(chunk_at(pass.stage) + lane * 16 + j * 512, quad(values, chunk * kChunkQuads + j));
    }
    barrier_arrive(m.passed + pass.stage * 8);
  }
  // total = what the part before has handed on + total, which is the first own segment, + sum, the second if there is
  // one.
  __device__ __forceinline__ void add_chunk(float (&total)[kValues], const float (&sum)[kValues], int chunk) const {
    if (part == 0) {
      barrier_wait_cluster(m.come + pass.stage * 8, pass.parity);
      if (warp == 0 && lane == 0) expect_total(pass.stage);
    } else {
      barrier_wait(m.passed + pass.stage * 8, pass.parity);
    }
    float4 before[kChunkQuads];
#pragma unroll
    for (int j = 0; j < kChunkQuads; ++j) {
      before[j] = load_shared_float4(chunk_at(pass.stage) + lane * 16 + j * 512);
    }
#pragma unroll
    for (int j = 0; j < kChunkQuads; ++j) {
      const int i = 4 * (chunk * kChunkQuads + j);
      total[i] += before[j].x, total[i + 1] += before[j].y, total[i + 2] += before[j].z, total[i + 3] += before[j].w;
    }
    if (share() == 1) return;
#pragma unroll
    for (int i = 4 * chunk * kChunkQuads; i < 4 * (chunk + 1) * kChunkQuads; ++i) total[i] += sum[i];
  }
  // Whoever filled the slot may fill it again; nobody waits for that of the last item's last chunks.
  __device__ __forceinline__ void free_slot(int slot, int chunk, bool last_item) const {
    if (last_item && chunk + kPassSlots >= kPassChunks) return;
    if (rank == 0) {
      barrier_arrive(m.free_own + slot * 8);
    } else {
      __syncwarp();
      if (lane == 0) barrier_arrive_cluster(block_address(m.free_next + slot * 8, rank - 1));
    }
  }

  __device__ __forceinline__ void hand_on(float (&total)[kValues], const float (&sum)[kValues], bool last_item) {
#pragma unroll
    for (int chunk = 0; chunk < kPassChunks; ++chunk, pass.advance(kPassSlots)) {
      add_chunk(total, sum, chunk);
      if (part == 0) {
        store_chunk(total, chunk);
        continue;
      }
      free_slot(pass.stage, chunk, last_item);
      barrier_wait_cluster(m.free_next + pass.stage * 8, pass.parity ^ 1);
      const std::uint32_t come = block_address(m.come + pass.stage * 8, rank + 1);
      const std::uint32_t to = block_address(chunk_at(pass.stage) + lane * 16, rank + 1);
#pragma unroll
      for (int j = 0; j < kChunkQuads; ++j) store_cluster(to + j * 512, quad(total, chunk * kChunkQuads + j), come);
    }
  }

  // The last part stores, through the slots of the last two chunks: each has room for half of the tokens.
  __device__ __forceinline__ void finish(const Segment s, int first_token, float (&total)[kValues],
                                         const float (&sum)[kValues], bool last_item) {
    constexpr int kKept = kPassChunks - 2;  // the first chunk whose slot is kept
    int kept[2];
#pragma unroll
    for (int chunk = 0; chunk < kPassChunks; ++chunk, pass.advance(kPassSlots)) {
      add_chunk(total, sum, chunk);
      if (chunk < kKept) {
        free_slot(pass.stage, chunk, last_item);
      } else {
        kept[chunk - kKept] = pass.stage;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      store_rows<kQuads / 2>(*s.q, s.row_tile * kRowTile + warp * 16, first_token + half * kTokens / 2,
                             chunk_at(kept[half]), [&](int j) { return quad(total, half * kQuads / 2 + j); });
      free_slot(kept[half], kKept + half, last_item);
    }
  }

  __device__ __forceinline__ void run_parts(Segment s, int first_token, const Segment next_item, bool last_item) {
    const bool leads = rank == 0 && part == 0;
    float sum[kValues], total[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
      total[i] = -0.0F;  // adding to -0 leaves the first segment's sum as it is, zeros included
    }
    for (int i = 0; i < share(); ++i) {
      const float next_scales = first_scales(segment_after(s, i, next_item));
      s.number = own_segment(i);
      sum_segment(sum, s, scales_ahead);
      scales_ahead = next_scales;
      if (leads || i == 0) add(total, sum);
    }
    if (leads) {
#pragma unroll
      for (int chunk = 0; chunk < kPassChunks; ++chunk, pass.advance(kPassSlots)) {
        barrier_wait(m.free_own + pass.stage * 8, pass.parity ^ 1);
        store_chunk(total, chunk);
      }
    } else if (part + 1 < kParts || static_cast<int>(rank) + 1 < blocks) {
      hand_on(total, sum, last_item);
    } else {
      finish(s, first_token, total, sum, last_item);
    }
  }

  // The one segment of an item.
  __device__ __forceinline__ void run_segment(const Segment s, int first_token, const Segment next) {
    float sum[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0F;
    const float next_scales = first_scales(next);
    sum_segment(sum, s, scales_ahead);
    scales_ahead = next_scales;
    store_tile(*s.q, s.row_tile, first_token, staging(), sum);
  }

  // Of an item of the problem.
  __device__ __forceinline__ int own_stages(const LinearProblem& q) const {
    int stages = 0;
    for (int i = 0; i < share(); ++i) {
      stages += segment_stage(p, q, own_segment(i) + 1) - segment_stage(p, q, own_segment(i));
    }
    return stages;
  }

  // This warpgroup's part of an item; its row tile may lie beyond the problem's last, as one beyond the item's does.
  __device__ __forceinline__ Segment segment_of(const LinearItem& item) const {
    const LinearProblem& q = p.problems[item.problem];
    return {&q, tile < q.item_tiles ? item.row_group * q.item_tiles + tile : q.row_tiles, 0};
  }
  __device__ __forceinline__ static bool present(const Segment s) {
    return s.row_tile < s.q->row_tiles;
  }

  // While inputs are being made: the first two items, and scales of the first. To find one takes thousands of clocks
  // as long as neither instructions nor parameters are at hand.
  __device__ __forceinline__ void find_first(int cluster, int clusters) {
    item = linear_item(p, item_of_round(0, cluster, clusters));
    const int next = item_of_round(1, cluster, clusters);
    next_item = next < p.items ? linear_item(p, next) : item;
    Segment s = segment_of(item);
    s.number = own_segment(0);
    scales_ahead = first_scales(s);
  }

  // Precondition: find_first().
  __device__ __forceinline__ void run(int cluster, int clusters) {
    if (kParts > 1 && part == 0 && rank > 0 && warp == 0 && lane == 0) {
      for (int slot = 0; slot < kPassSlots; ++slot) expect_total(slot);
    }
    const bool dealt = kParts == 1 && blocks > 1;
    if (dealt && owns_rows() && warp == 0 && lane == 0) {
      for (int slot = 0; slot < kSumSlots; ++slot) expect_sums(slot);
    }
    for (int round = 1;; ++round) {
      const bool last_item = item_of_round(round, cluster, clusters) >= p.items;
      const Segment s = segment_of(item);
      Segment next = segment_of(next_item);
      if (present(s)) {
        if constexpr (!Shape::kAddsSegments) {
          run_segment(s, item.token_tile * p.item_tokens, next);
        } else if constexpr (kParts > 1) {
          run_parts(s, item.token_tile * p.item_tokens, next, last_item);
        } else {
          run_item(s, item.token_tile * p.item_tokens, next);
        }
      } else {
        skip(own_stages(*s.q));
        next.number = own_segment(0);
        scales_ahead = first_scales(next);
      }
      if (last_item) break;
      item = next_item;
      const int index = item_of_round(round + 1, cluster, clusters);
      if (index < p.items) next_item = linear_item(p, index);
    }
    if (dealt && !owns_rows()) wait_taken();
    if (stores_boxes()) wait_stores_read<0>();  // shared memory ends with the block
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
