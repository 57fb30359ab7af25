// A consumer of the E4M3 kernel: a warpgroup that multiplies 64 tokens by one row tile or two, scales and adds the
// sums of every 128 inputs of codes, and stores, or sends its sums to the cluster's block that does.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/common/wgmma_e4m3.cuh"
#include "backend/cuda/kernels/linear/fp8/fp8_store.cuh"
#include "backend/cuda/kernels/linear/shared/items.cuh"

namespace dsv4rt::cuda {

// Shared-memory addresses.
struct Fp8Memory {
  std::uint32_t stages;   // [p.stages][kStageBytes]: inputs, then weights
  std::uint32_t buffers;  // totals, or sums of the other block, of each warpgroup, then outputs on their way
  std::uint32_t scales;   // [p.stages][tokens]
  std::uint32_t full;     // [kMaxStages] barriers
  std::uint32_t empty;    // [kMaxStages]
  // Where a cluster shares segments, [warpgroup][kFp8SumSlots]: sums have come; the other block may send the next.
  std::uint32_t sent;
  std::uint32_t taken;
};

// Of a block: its cluster among the grid's, and itself in it.
struct Fp8Place {
  int cluster;
  int clusters;
  int rank;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <class Shape>
struct Fp8Consumer {
  static constexpr bool kSharesSegments = Shape::kSharesSegments;
  // Accumulators of a thread for so many row tiles.
  template <int kTiles>
  using Values = float[kTiles * kRowTile / 2];

  const PrefillParams& p;
  const Fp8Memory& m;
  Fp8Place place;
  int group;
  int warp;  // number in the warpgroup
  int lane;
  Ring ring{};
  Ring pass{};  // slots in which the other block's sums come, or go there

  // The scales of a row tile's weights, if they are codes. One beyond the problem's last has those of the last one, as
  // it has its weights, and is not stored.
  __device__ __forceinline__ static const float* scales_of(const LinearProblem& q, int row_tile) {
    return q.scales + std::int64_t{min(row_tile, q.row_tiles - 1)} * q.scale_blocks;
  }

  // The current stage's operands: the warpgroup's tokens, and the weights.
  struct Operands {
    std::uint32_t inputs;
    std::uint32_t weights;
  };
  __device__ __forceinline__ Operands wait_for_stage() const {
    barrier_wait(m.full + ring.stage * 8, ring.parity);
    const std::uint32_t stage = m.stages + ring.stage * Shape::kStageBytes;
    return {stage + group * (kFp8GroupTokens * kStageBytesOfInput), stage + Shape::kInputBytes};
  }
  __device__ __forceinline__ void pass_stage() {
    __syncwarp();
    if (lane == 0) barrier_arrive(m.empty + ring.stage * 8);  // 32 arrivals of a warp would take turns
    ring.advance(p.stages);
  }

  // A segment of codes, blocks first .. end - 1 of 128 inputs.
  template <int kTiles>
  __device__ __forceinline__ void multiply_codes(Values<kTiles>& sum, const float* const (&scales)[kTiles], int first,
                                                 int end) {
    constexpr int kColumns = kTiles * kRowTile;
    constexpr int kValues = kColumns / 2;
#pragma unroll
    for (int i = 0; i < kValues; ++i) sum[i] = 0.0F;
    float weight[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) weight[tile] = __ldg(scales[tile] + first);
    for (int block = first; block < end; ++block) {
      const Operands stage = wait_for_stage();
      float product[kValues];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kE4m3Steps; ++step) {
        WgmmaE4m3<kColumns>::run(product, wgmma_tile(stage.inputs, step), wgmma_tile(stage.weights, step), step > 0);
      }
      wgmma_commit();
      // While they run: the scales of tokens l / 4 and l / 4 + 8.
      const std::uint32_t at =
          m.scales + ring.stage * Shape::kScaleBytes + (group * kFp8GroupTokens + warp * 16 + lane / 4) * 4;
      float token[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(token[i]) : "r"(at + i * 32) : "memory");
      }
      float factors[kTiles][2];
#pragma unroll
      for (int i = 0; i < 2 * kTiles; ++i) factors[i / 2][i % 2] = weight[i / 2] * token[i % 2];
      wgmma_wait<0>();
      wgmma_hold(product);
      fence_async_proxy();  // loads of the scales end before the copy engine writes the next ones
      pass_stage();
      // The weights' next scales: not before the fence, which would wait for them.
      const int next = min(block + 1, end - 1);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) weight[tile] = __ldg(scales[tile] + next);
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        sum[i] = __fmaf_rn(product[i], factors[i / (kValues / kTiles)][i % 4 / 2], sum[i]);
      }
    }
  }

  // A segment of so many stages of BF16 values. The products' accumulators are not the sums that multiply_codes() adds
  // to: those would then be bound to registers next to each other, whose banks its products share, 4 % of its time.
  template <int kTiles>
  __device__ __forceinline__ void multiply_values(Values<kTiles>& sum, int stages) {
    Values<kTiles> product;
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
      const Operands stage = wait_for_stage();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kStageInputs / kTileStepInputs; ++step) {
        Wgmma<kTiles * kRowTile>::bf16(product, wgmma_tile(stage.inputs, step), wgmma_tile(stage.weights, step),
                                       i + step > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_hold(product);
      pass_stage();
    }
#pragma unroll
    for (int i = 0; i < kTiles * kRowTile / 2; ++i) sum[i] = product[i];
  }

  template <int kTiles>
  __device__ __forceinline__ void sum_segment(Values<kTiles>& sum, const float* const (&scales)[kTiles],
                                              const LinearProblem& q, int segment) {
    const int first = segment_block(p, q, segment);
    const int end = segment_block(p, q, segment + 1);
    // Single row tiles are of codes alone.
    if (Shape::kTakesValues && kTiles == Shape::kRowTiles && q.kind == TileKind::kBf16) {
      multiply_values<kTiles>(sum, (end - first) * stages_per_scale(TileKind::kBf16));
    } else {
      multiply_codes<kTiles>(sum, scales, first, end);
    }
  }

  // The warpgroup's part of the buffers, in the block that adds up its tokens' totals.
  __device__ __forceinline__ std::uint32_t buffer() const {
    const int number = kSharesSegments ? group / 2 : group;
    return m.buffers + number * Shape::group_bytes(p.segments > 1);
  }

  // Totals in shared memory: those of a thread lie by fours, [kValues / 4][128 threads], as sums that blocks send do.
  // Of a pair the odd one comes first. Registers have two banks, even and odd ones, and a multiply-add that reads three
  // operands from one takes a cycle more: products lie in registers next to each other, in order, and so does what is
  // stored by fours. In this order a sum is never in the bank of the product that is added to it.
  __device__ __forceinline__ std::uint32_t fours(int slot = 0) const {
    return buffer() + slot * Shape::kTotalBytes + (warp * 32 + lane) * 16;
  }
  template <int kValues>
  __device__ __forceinline__ void store_totals(const float (&sum)[kValues]) const {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      store_shared(fours() + i * (kWarpgroup * 4), make_float4(sum[i + 1], sum[i], sum[i + 3], sum[i + 2]));
    }
  }
  // Adds what lies at `from` to the totals.
  template <int kValues>
  __device__ __forceinline__ static void add_fours(float (&total)[kValues], std::uint32_t from) {
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      const float4 part = load_shared_float4(from + i * (kWarpgroup * 4));
      total[i] += part.y;
      total[i + 1] += part.x;
      total[i + 2] += part.w;
      total[i + 3] += part.z;
    }
  }

  // Barriers of the warpgroup's slots.
  __device__ __forceinline__ std::uint32_t sent(int slot) const {
    return m.sent + (group * kFp8SumSlots + slot) * 8;
  }
  __device__ __forceinline__ std::uint32_t taken(int slot) const {
    return m.taken + (group * kFp8SumSlots + slot) * 8;
  }
  __device__ __forceinline__ bool owns_tokens() const {
    return group % 2 == place.rank;
  }
  __device__ __forceinline__ unsigned other_block() const {
    return static_cast<unsigned>(place.rank) ^ 1U;
  }
  __device__ __forceinline__ void expect_sums(int slot) const {
    barrier_arrive_expect(sent(slot), Shape::kTotalBytes);
  }
  __device__ __forceinline__ void wait_taken() const {
    barrier_wait_cluster(taken(pass.stage), pass.parity ^ 1);
  }
  template <int kValues>
  __device__ __forceinline__ void send(const float (&sum)[kValues]) {
    wait_taken();
    const std::uint32_t barrier = block_address(sent(pass.stage), other_block());
    const std::uint32_t to = block_address(fours(pass.stage), other_block());
#pragma unroll
    for (int i = 0; i < kValues; i += 4) {
      store_cluster(to + i * (kWarpgroup * 4), make_float4(sum[i + 1], sum[i], sum[i + 3], sum[i + 2]), barrier);
    }
    pass.advance(kFp8SumSlots);
  }
  // Adds what has come to the current slot.
  template <int kValues>
  __device__ __forceinline__ void receive(float (&total)[kValues]) const {
    barrier_wait_cluster(sent(pass.stage), pass.parity);
    if (warp == 0 && lane == 0) expect_sums(pass.stage);
    add_fours(total, fours(pass.stage));
  }
  // The other block may fill the current slot again. An arrival of readers suffices: what this warp has written there,
  // outputs on their way, has been read back.
  __device__ __forceinline__ void pass_slot() {
    __syncwarp();
    if (lane == 0) barrier_arrive_readers(block_address(taken(pass.stage), other_block()));
    pass.advance(kFp8SumSlots);
  }

  // Totals of the item over all segments; false where the other block has them.
  template <int kTiles>
  __device__ __forceinline__ bool sum_segments(Values<kTiles>& total, const float* const (&scales)[kTiles],
                                               const LinearProblem& q) {
    Values<kTiles> sum;
#pragma unroll 1
    for (int segment = kSharesSegments ? place.rank : 0; segment < p.segments; segment += kSharesSegments ? 2 : 1) {
      sum_segment<kTiles>(sum, scales, q, segment);
      if (kSharesSegments && !owns_tokens()) {
        send(sum);
        continue;
      }
      if (kSharesSegments && segment > 0) {  // the other block's, the segment in front
        receive(total);
        if (segment + 1 < p.segments) pass_slot();
      }
#pragma unroll
      for (int i = 0; i < kTiles * kRowTile / 2; ++i) total[i] += sum[i];
    }
    if (kSharesSegments && !owns_tokens()) return false;
    if (kSharesSegments && place.rank == 0) receive(total);
    return true;
  }

  // slot: of the warpgroup's, where outputs lie on their way.
  template <int kTiles>
  __device__ __forceinline__ Fp8Store<kTiles> store_of(int problem, int slot) const {
    return {p.problems[problem],
            &p.outputs[problem],
            p.output_scales[problem],
            p.output_scale_stride,
            p.tokens,
            buffer() + slot * Shape::kTotalBytes,
            1 + group,
            warp,
            lane};
  }

  template <int kTiles>
  __device__ __forceinline__ void run_item(const LinearItem& item, const LinearProblem& q) {
    const int row_tile = item.row_group * kTiles;
    const float* scales[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) scales[tile] = scales_of(q, row_tile + tile);
    const int first_token = item.token_tile * Shape::kTokens + group * kFp8GroupTokens;
    if constexpr (Shape::kKeepsTotals) {
      Values<kTiles> total;
#pragma unroll
      for (float& value : total) value = -0.0F;  // added to, it leaves the first segment's sum as it is
      if (!sum_segments<kTiles>(total, scales, q)) return;
      const auto store = store_of<kTiles>(item.problem, kSharesSegments ? pass.stage : 0);
      if constexpr (kSharesSegments) {
        store.sync_warpgroup();  // all have read the slot
      } else {
        store.wait_for_buffer();
      }
      store.run(row_tile, first_token, total);
      if constexpr (kSharesSegments) {
        store.wait_for_boxes();
        pass_slot();
      }
    } else {
      const auto store = store_of<kTiles>(item.problem, 0);
      Values<kTiles> sum;
      for (int segment = 0; segment < p.segments; ++segment) {
        sum_segment<kTiles>(sum, scales, q, segment);
        if (segment == 0) store.wait_for_buffer();
        if (segment > 0) add_fours(sum, fours());
        if (segment + 1 < p.segments) store_totals(sum);
      }
      if (p.segments > 1) store.sync_warpgroup();  // all have read their totals
      store.run(row_tile, first_token, sum);
    }
  }

  __device__ __forceinline__ void run() {
    if (kSharesSegments && owns_tokens() && warp == 0 && lane == 0) {
      for (int slot = 0; slot < kFp8SumSlots; ++slot) expect_sums(slot);
    }
    for (int round = 0;; ++round) {
      const int index = item_of_round(round, place.cluster, place.clusters);
      if (index >= p.items) break;
      const LinearItem item = linear_item(p, index);
      const LinearProblem& q = p.problems[item.problem];
      if (Shape::kTakesSingles && q.item_tiles == 1) {
        run_item<1>(item, q);
      } else {
        run_item<Shape::kRowTiles>(item, q);
      }
    }
    if (kSharesSegments && !owns_tokens()) {  // before its block ends: nobody arrives here any more
      for (int i = 0; i < kFp8SumSlots; ++i, pass.advance(kFp8SumSlots)) wait_taken();
    }
    if (warp == 0 && elected_lane()) wait_stores_read<0>();  // shared memory ends with the block
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
