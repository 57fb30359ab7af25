// A consumer of the prefill kernel: a warpgroup that multiplies the stages of one row tile, adds up segments and
// stores outputs.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_shape.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_store.cuh"
#include "backend/cuda/kernels/linear/shared/widen.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kTokens>
struct PrefillConsumer {
  using Shape = PrefillShape<kTokens>;
  using Mma = Wgmma<kTokens>;
  static constexpr int kValues = Shape::kValues;

  const PrefillParams& p;
  const PrefillMemory& m;
  int tile;  // number among the block's row tiles
  int warp;  // number in the warpgroup
  int lane;
  int rank;             // rank of the block in its pair
  std::uint32_t empty;  // the stages' empty barriers in block `lane` of the pair
  Ring ring;
  float scale_ahead = 0.0F;  // scale of the block of inputs that comes next

  __device__ std::uint32_t weights_at(TileKind kind) const {
    return m.stages + ring.stage * p.stage_bytes + tile * stage_tile_bytes(kind);
  }
  __device__ std::uint32_t inputs_at() const { return m.stages + ring.stage * p.stage_bytes + p.input_offset; }
  __device__ __forceinline__ void wait_full() const { barrier_wait(m.full + ring.stage * 8, ring.parity); }
  // Both blocks' producers write into a stage of this block.
  __device__ __forceinline__ void release(int stage) const {
    __syncwarp();  // all lanes have read it
    if (lane < kPrefillBlocks) barrier_arrive_readers(empty + stage * 8);
  }
  __device__ __forceinline__ int stage_before() const { return (ring.stage > 0 ? ring.stage : p.stages) - 1; }

  // Stages of an item that a row tile beyond the problem's last does not need.
  __device__ __forceinline__ void skip(int stages) {
    for (int i = 0; i < stages; ++i) {
      wait_full();
      release(ring.stage);
      ring.advance(p.stages);
    }
  }

  // Steps of 16 inputs of a stage.
  static constexpr int kSteps = kStageInputs / kTileStepInputs;

  // Both functions below set sum to the products of some blocks of an item, but do not wait for the last stage.
  __device__ __forceinline__ void sum_bf16(float (&sum)[kValues], int blocks) {
    for (int i = 0; i < blocks * kStagesPerScale; ++i) {
      wait_full();
      const std::uint32_t a = weights_at(TileKind::kBf16);
      const std::uint32_t b = inputs_at();
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Mma::bf16(sum, wgmma_tile(a, step), wgmma_tile(b, step), step > 0 || i > 0);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (i > 0) release(stage_before());
      ring.advance(p.stages);
    }
  }

  // Blocks first .. end - 1 of the row tile that `scales` belongs to. While a step is widened, those before run.
  __device__ __forceinline__ void sum_fp8(float (&sum)[kValues], int first, int end, const LinearProblem& q,
                                          const float* scales) {
    std::uint32_t a[kSteps][4];
    for (int block = first; block < end; ++block) {
      const std::uint32_t factors = widening_factors(scale_ahead);
      scale_ahead = __ldg(scales + min(block + 1, q.scale_blocks - 1));
#pragma unroll
      for (int stage = 0; stage < kStagesPerScale; ++stage) {
        wait_full();
        const std::uint32_t codes_at = weights_at(TileKind::kFp8) + (warp * 32 + lane) * 16;
        const std::uint32_t inputs = inputs_at();
        uint4 codes;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          if (step % 2 == 0) codes = load_shared_uint4(codes_at + step * (stage_tile_bytes(TileKind::kFp8) / kSteps));
          wgmma_wait<kSteps - 1>();  // the step that read the same registers is done
          widen(step % 2 == 0 ? codes.x : codes.z, step % 2 == 0 ? codes.y : codes.w, factors, a[step]);
          wgmma_fence();
          Mma::bf16_registers(sum, a[step], wgmma_tile(inputs, step), step > 0 || stage > 0 || block > first);
          wgmma_commit();
        }
        if (stage > 0 || block > first) release(stage_before());  // done before the last step's wait
        ring.advance(p.stages);
      }
    }
  }

  // One row tile of an item.
  struct Place {
    const LinearProblem* q;
    int row_tile;
    int first_token;
    bool valid;
    __device__ __forceinline__ bool present() const { return row_tile < q->row_tiles; }
    __device__ __forceinline__ const float* scales() const {
      return q->scales + std::int64_t{row_tile} * q->scale_blocks;
    }
  };

  // Finds an item and fetches its first scale.
  __device__ __forceinline__ Place look_ahead(int index) {
    if (index >= p.items) return {.valid = false};
    const LinearItem item = linear_item(p, index);
    const Place place{&p.problems[item.problem], (item.row_group * kPrefillBlocks + rank) * kPrefillBlockTiles + tile,
                      item.token_tile * kTokens, true};
    if (place.q->kind == TileKind::kFp8 && place.present()) scale_ahead = __ldg(place.scales());
    return place;
  }

  // Returns the place with index `next`.
  __device__ __forceinline__ Place run_place(const Place& at, int next_index) {
    const LinearProblem& q = *at.q;
    if (!at.present()) {
      skip(q.scale_blocks * kStagesPerScale);
      return look_ahead(next_index);
    }
    Place next;
    float sum[kValues], total[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      sum[i] = 0.0F;
      total[i] = -0.0F;  // adding to -0 leaves the first segment's sum as it is, zeros included
    }
    for (int segment = 0; segment < p.segments; ++segment) {
      const int first = q.scale_blocks * segment / p.segments;
      const int end = q.scale_blocks * (segment + 1) / p.segments;
      if (q.kind == TileKind::kBf16) {
        sum_bf16(sum, end - first);
      } else {
        sum_fp8(sum, first, end, q, at.scales());
      }
      if (segment + 1 == p.segments) next = look_ahead(next_index);  // while the last products run
      wgmma_wait<0>();
      wgmma_hold(sum);
      release(stage_before());
#pragma unroll
      for (int i = 0; i < kValues; ++i) total[i] += sum[i];
    }
    const PrefillStore<kTokens> store{q,           &p.outputs[at.q - p.problems],
                                      p.tokens,    m.buffers + tile * 2 * Shape::kBufferBytes,
                                      1 + tile,    opaque(warp),
                                      opaque(lane)};
    store.run(at.row_tile, at.first_token, total);
    return next;
  }

  __device__ __forceinline__ void run(int pair, int pairs) {
    Place at = look_ahead(item_of_round(0, pair, pairs));
    for (int round = 1; at.valid; ++round) at = run_place(at, item_of_round(round, pair, pairs));
    if (warp == 0 && elected_lane()) wait_stores_read<0>();  // shared memory ends with the block
  }
};

#endif  // sm_90a

}  // namespace dsv4rt::cuda
