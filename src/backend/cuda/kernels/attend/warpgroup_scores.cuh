// The consumers of warpgroup_plan.cuh, first half: scores and weights of 64 heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/warpgroup_plan.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kConsumersBarrier = 1;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kBlocks>
class ScoreConsumer {
 public:
  using Shared = WarpgroupShared<kBlocks>;
  static constexpr int kWarpgroupTiles = warpgroup_tiles<kBlocks>();
  static constexpr int kProducts = kTileRows / 16;  // matrix products over a tile's values, 16 rows each
  using TileScores = float[32];
  using Scores = TileScores[kWarpgroupTiles];
  static constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
  static_assert(kHeadDim == 512);

  __device__ ScoreConsumer(const AttendParams& params, Shared& shared) : p_(params), shared_(shared) {}

 protected:
  // Everything up to the weights, which this block's others and other blocks then take.
  __device__ void publish_scores() {
    barrier_wait(shared_address(&shared_.q_full), 0);
    {
      Scores s;
      score(s);
      const bool shifted = agree_on_max(s);
      weigh(s, shifted);
    }
    publish_weights();
  }

  // --- scores of the split -------------------------------------------------------------------------------

  // Tile of this warpgroup's `j`-th score product; negative: none.
  [[nodiscard]] __device__ int tile_of(const KvSplit<kBlocks>& split, int j) const {
    return split.tiles() - 1 - (2 * j + group_);
  }
  [[nodiscard]] __device__ KvSplit<kBlocks> split() const {
    return {shared_.work.rows, static_cast<int>(blockIdx.x) % kBlocks};
  }

  // Scores of the split's tiles. Every product is made in s's last tile and moved away.
  __device__ void score(Scores& s) {
    TileScores& product = s[kWarpgroupTiles - 1];
#pragma unroll
    for (int j = 0; j < kWarpgroupTiles; ++j) {
      if (!score_tile(j, product, s[j])) break;
    }
  }

  // Scaled scores of the warpgroup's `j`-th tile, -infinity past the split's end, and their maxima in max_. False: it
  // has no such tile.
  __device__ bool score_tile(int j, TileScores& product, TileScores& scores) {
    const std::uint64_t q = atom_descriptor(shared_address(shared_.q), 16);
    const std::uint64_t k = atom_descriptor(shared_address(shared_.slot[group_]), 16);
    const auto split = this->split();
    const int tile = tile_of(split, j);
    if (tile < 0) return false;
    barrier_wait(shared_address(&shared_.full[group_]), j & 1);
    fence_async_proxy();
    wgmma_hold(product);
#pragma unroll 1
    for (int atom = 0; atom < kAtoms; ++atom) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kAtomValues / 16; ++i) {
        const int step = (atom * kAtomBytes + i * 32) / 16;
        Wgmma<kTileRows>::bf16(product, q + step, k + step, atom + i > 0);
      }
      wgmma_commit();
    }
    wgmma_wait<0>();
    wgmma_hold(product);
    release(shared_.empty[group_], 2);
    const int rows = split.end() - split.begin() - tile * kTileRows - lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = __fmul_rn(product[i], kScale);
      if (j == 0 && i / 4 * 8 + i % 2 >= rows) scores[i] = -INFINITY;
      max_[i % 4 / 2] = fmaxf(max_[i % 4 / 2], scores[i]);
    }
    return true;
  }

  // The greatest of the thread's scores of window rows, of each of its heads. Such rows, 128 at most and the token's
  // first, are in the two tiles that the warpgroups score last: what is left of the last product tells, which is in s's
  // last tile still. Apart from the scores: between products there are no registers to spare.
  __device__ void find_window_max(const Scores& s, float (&largest)[2]) const {
    const KvSplit<kBlocks> split = this->split();
    const int tile = (split.tiles() - 1 - group_) & 1;
    const int window =
        split.tiles() > group_ ? shared_.work.window - split.begin() - tile * kTileRows - lane_ % 4 * 2 : 0;
    const bool scaled = tile_of(split, kWarpgroupTiles - 1) >= 0;
    largest[0] = largest[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      if (i / 4 * 8 + i % 2 < window) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], s[kWarpgroupTiles - 1][i]);
    }
#pragma unroll
    for (float& value : largest) value = scaled ? value : __fmul_rn(value, kScale);
  }

  // This warp arrives: `arrivals` of the eight that free a slot.
  __device__ void release(std::uint64_t& empty, int arrivals) {
    if (lane_ == 0) barrier_arrive_several(shared_address(&empty), arrivals);
  }

  // --- what the token's weights are relative to ----------------------------------------------------------

  __device__ static float4 greater(float4 a, float4 b) {
    return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
  }
  // Of the four lanes that have the same heads.
  __device__ static float greatest_of_lanes(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
  }

  // Finds what the token's weights are relative to. Whether some of the warp's heads have a shift.
  __device__ bool agree_on_max(const Scores& s) {
    float window_max[2];
    find_window_max(s, window_max);
    float4 max = make_float4(greatest_of_lanes(window_max[0]), greatest_of_lanes(window_max[1]),
                             greatest_of_lanes(max_[0]), greatest_of_lanes(max_[1]));
    const int heads = warp_ % 4 * 8 + lane_ / 4;
    if (group_ == 1 && lane_ % 4 == 0) shared_.group_max[heads] = max;
    named_sync(kConsumersBarrier, kConsumers);
    if (group_ == 0) {
      max = greater(max, shared_.group_max[heads]);
      const int rank = this->split().rank;
#pragma unroll
      for (int i = 0; i < (kBlocks + 3) / 4; ++i) {
        const int block = lane_ % 4 + 4 * i;
        if (kBlocks % 4 != 0 && block >= kBlocks) break;
        store_cluster(block_address(shared_address(&shared_.split_max[rank][heads]), block), max,
                      block_address(shared_address(&shared_.max_ready), block));
      }
    }
    barrier_wait_cluster(shared_address(&shared_.max_ready), 0);
    max = shared_.split_max[0][heads];
#pragma unroll
    for (int b = 1; b < kBlocks; ++b) max = greater(max, shared_.split_max[b][heads]);
    reference_[0] = weight_reference(max.x, max.z);
    reference_[1] = weight_reference(max.y, max.w);
    return __any_sync(0xffffffffu, needs_shift(max.x, max.z) || needs_shift(max.y, max.w));
  }

  // --- weights -------------------------------------------------------------------------------------------

  // p = weights of s: sums of steps unrounded, weights rounded and in the layout of a register operand: 16
  // bytes for each (16 rows, thread). In place of the queries.
  __device__ void weigh(Scores& s, bool shifted) {
#pragma unroll
    for (int j = 0; j < kWarpgroupTiles; ++j) {
      if (tile_of(split(), j) < 0) break;
      weigh_tile(j, s[j], shifted);
    }
  }

  __device__ void weigh_tile(int j, TileScores& s, bool shifted) {
    const auto split = this->split();
    const int tile = tile_of(split, j);
    if (shifted) [[unlikely]] {
      weigh_shifted(reference_[0], reference_[1], s);
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) s[i] = reference_[i % 4 / 2].unshifted_weight(s[i]);
    }
    int lane = lane_;
    asm volatile("" : "+r"(lane));  // what follows from it would otherwise be kept, and spilled
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = head_sum(step_sum(s, step, half));
        const int at = 2 * tile + step;
        if (lane % 4 == 0 && at < split.own_steps()) shared_.step_sum[split.own_step() + at][head(half)] = sum;
      }
    }
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const float* v = &s[8 * i];
      const int at = tile * kProducts + i;
      if (at < 2 * split.own_steps()) {  // beyond lie the next block's
        *reinterpret_cast<uint4*>(weights(2 * split.own_step() + at)) =
            make_uint4(round_pair(v[0], v[1]), round_pair(v[2], v[3]), round_pair(v[4], v[5]), round_pair(v[6], v[7]));
      }
    }
  }

  // This thread's unit of a step of 16 rows.
  [[nodiscard]] __device__ std::byte* weights(int step) {
    return shared_.q + Shared::weight_offset(warp_ % 4, step) + lane_ * kUnitBytes;
  }

  __device__ void publish_weights() {
    const KvSplit<kBlocks> split = this->split();
    if (split.gathers()) {
      fence_async_proxy();
      named_sync(kConsumersBarrier, kConsumers);
      constexpr int kSumBytes = kTileHeads * 4;
      // Those of the heads that exist, 16 for a warp, whose steps lie side by side.
      const int warps = (shared_.work.heads + 15) / 16;
      const int target = thread_ % kBlocks;
      const int warp = thread_ / kBlocks;
#pragma unroll 1
      for (int chunk = 0; chunk < Shared::kChunks; ++chunk) {
        const std::uint32_t here = shared_address(&shared_.weights_here[chunk]);
        const int begin = chunk * Shared::kChunkSteps;
        const int end = min(split.steps, begin + Shared::kChunkSteps);
        const int first = max(begin, split.first_step(split.rank));
        const int steps = max(0, min(end, split.first_step(split.rank + 1)) - first);
        if (thread_ == split.rank) {
          barrier_arrive_expect(here, (max(0, end - begin) - steps) * (kSumBytes + 2 * warps * kWarpProductBytes));
        } else if (target != split.rank && steps > 0 && warp < warps) {
          const std::byte* from = shared_.q + warp * Shared::kWarpWeightBytes + 2 * first * kWarpProductBytes;
          copy_bulk_cluster(shared_address(from), 2 * steps * kWarpProductBytes, here, target);
          if (warp == 0) copy_bulk_cluster(shared_address(shared_.step_sum[first]), steps * kSumBytes, here, target);
        }
      }
    } else {
      __syncwarp();
      if (lane_ < kBlocks) barrier_arrive_cluster(block_address(shared_address(&shared_.weights_ready), lane_));
      barrier_wait_cluster(shared_address(&shared_.weights_ready), 0);
    }
  }

  // The head that this thread's accumulators in the half given belong to.
  [[nodiscard]] __device__ int head(int half) const {
    return warp_ % 4 * 16 + half * 8 + lane_ / 4;
  }

  const AttendParams& p_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = __shfl_sync(0xffffffffu, thread_ / 32, 0);  // known to be uniform
  int lane_ = thread_ % 32;
  int group_ = warp_ / 4;
  // Of the thread's two heads: the greatest of its scores; what the token's weights are relative to.
  float max_[2] = {-INFINITY, -INFINITY};
  WeightReference reference_[2];
};

#endif

}  // namespace dsv4rt::cuda
