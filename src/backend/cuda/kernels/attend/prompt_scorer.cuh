// The scorer of prompt_plan.cuh.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/prompt_plan.cuh"
#include "backend/cuda/kernels/attend/query_norm.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/tile_scores.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/mma_tile.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// kShifted: heads may have a shift. Each tile is then scored twice, first for the greatest scores.
template <bool kShifted>
class PromptScorer {
 public:
  __device__ PromptScorer(const AttendParams& params, const CUtensorMap& queries, const BlockPass& pass,
                          PromptShared& shared)
      : p_(params), queries_(queries), pass_(pass), shared_(shared) {}

  // Starts the copies of a half of the queries' values of the block's `i`-th item, if there is one, by one thread.
  __device__ void copy_queries(int i, int half) const {
    const std::int32_t item = pass_.item_of(block(), blocks(), i);
    if (item >= pass_.items()) return;
    const std::int32_t row = pass_.token(item) * p_.heads + pass_.first_head(item);
    const std::uint32_t full = shared_address(&shared_.q_full[half]);
    barrier_arrive_expect(full, kHalfBytes);
#pragma unroll 1
    for (int atom = 0; atom < kHalfAtoms; ++atom) {
      copy_box(shared_address(shared_.q[half]) + atom * kAtomBytes, &queries_, (half * kHalfAtoms + atom) * kAtomValues,
               row, full);
    }
  }

  // The block's `i`-th item, `n`-th of those that it has had in both rounds. Asks for the next one's queries.
  __device__ void score(int i, int n) {
    at_ = n % 2;
    phase_ = n & 1;
    barrier_wait(shared_address(&shared_.item_full[at_]), n / 2 & 1);
    barrier_wait(shared_address(&shared_.q_full[0]), phase_);
    if (shared_.item[at_].rows <= 0) {
      barrier_wait(shared_address(&shared_.q_full[1]), phase_);
      leave_queries(i, 0);
      leave_queries(i, 1);
      barrier_arrive(shared_address(&shared_.factor_full[at_]));
    } else {
      load_queries();
      leave_queries(i, 0);
      if (p_.query_eps) norm_queries(*p_.query_eps);
      score_rows(i);
    }
    // Every thread for itself, as it has read the item: racecheck does not see a warp behind one of its lanes.
    barrier_arrive(shared_address(&shared_.item_empty[at_]));
  }

 private:
  static constexpr int kSteps = kHalfAtoms * kAtomValues / 16;  // products, of 16 values each, for a half

  __device__ static int block() {
    return static_cast<int>(blockIdx.x);
  }
  __device__ static int blocks() {
    return static_cast<int>(gridDim.x);
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int first_row() {
    return static_cast<int>(threadIdx.x) / 32 * 16;
  }
  // The head that this thread's accumulators belong to: of each four two are one head's, two the other's, eight behind.
  __device__ static int head(int which) {
    return first_row() + which * 8 + lane() / 4;
  }
  [[nodiscard]] __device__ int rows() const {
    int value;  // read where it is needed: registers are full of scores and queries
    asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(value) : "r"(shared_address(&shared_.item[at_].rows)));
    return value;
  }

  // --- queries --------------------------------------------------------------------------------------------

  // When all have used them the next item's may come.
  __device__ void leave_queries(int i, int half) const {
    named_sync(kScorerBarrier, kRoleThreads);
    if (threadIdx.x == 0) copy_queries(i + 1, half);
  }
  [[nodiscard]] __device__ std::uint32_t query_address(int half, int step) const {
    const std::uint32_t first = fragment_address(shared_address(shared_.q[half]), first_row(), lane());
    return (first ^ (step % 4 * 2 * kUnitBytes)) + step / 4 * kAtomBytes;
  }
  __device__ void load_queries() {
    __syncwarp();  // lanes load together, and may have waited for queries each for itself
#pragma unroll
    for (int step = 0; step < kSteps; ++step) load_matrix_x4(q_[step], query_address(0, step));
    fence_async_proxy();  // the loads have ended when the next ones are asked for
  }
  // Norms and turns them: what is in registers there, the rest where it lies.
  __device__ void norm_queries(float eps) {
    barrier_wait(shared_address(&shared_.q_full[1]), phase_);
    __syncwarp();
    HeadSquares squares[2];
    const auto add = [&](const std::uint32_t(&words)[4]) {
      squares[0].add(words[0], words[2]);
      squares[1].add(words[1], words[3]);
    };
#pragma unroll
    for (int step = 0; step < kSteps; ++step) add(q_[step]);
#pragma unroll 1
    for (int begin = 0; begin < kSteps; begin += 4) {
      std::uint32_t words[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrix_x4(words[i], query_address(1, begin) ^ (i * 2 * kUnitBytes));
#pragma unroll
      for (auto& four : words) add(four);
    }
    const std::uint32_t scale[2] = {squares[0].scale(eps), squares[1].scale(eps)};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) q_[step][i] = multiply_pairs(q_[step][i], scale[i % 2]);
    }
    const bool turns = p_.output_rope.inverse_frequency != nullptr;
#pragma unroll 1
    for (int begin = 0; begin < kSteps; begin += 4) {  // atoms, of which the last one is turned
      std::uint32_t words[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrix_x4(words[i], query_address(1, begin) ^ (i * 2 * kUnitBytes));
#pragma unroll
      for (int i = 0; i < 16; ++i) words[i / 4][i % 4] = multiply_pairs(words[i / 4][i % 4], scale[i % 2]);
      if (turns && begin == kSteps - 4) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          turn_query(shared_.rotation[at_][(i / 4 * 2 + i % 4 / 2) * 4 + lane() % 4], words[i / 4][i % 4]);
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_fragments(query_address(1, begin) ^ (i * 2 * kUnitBytes), words[i][0], words[i][1], words[i][2],
                        words[i][3]);
      }
    }
    fence_async_proxy();
    named_sync(kScorerBarrier, kRoleThreads);
  }

  // --- scores ---------------------------------------------------------------------------------------------

  __device__ void hold_queries() {
#pragma unroll
    for (auto& four : q_) {
#pragma unroll
      for (std::uint32_t& word : four) asm volatile("" : "+r"(word)::"memory");
    }
  }
  // Starts the scores of a tile.
  __device__ void start(int tile, TileScores& s) {
    const std::uint32_t k = atom_word(shared_address(shared_.slot[tile % 2]), 16);
    const std::uint32_t q = atom_word(shared_address(shared_.q[1]), 16);
    wgmma_hold(s);
    hold_queries();
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      barrier_wait(shared_address(&shared_.full[tile % 2][half]), tile / 2 & 1);
      if (half == 1) barrier_wait(shared_address(&shared_.q_full[1]), phase_);
      fence_async_proxy();
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int step = (i / 4 * kAtomBytes + i % 4 * 32) / 16;
        const std::uint64_t values = atom_descriptor(k + half * kHalfBytes / 16 + step);
        if (half == 0) {
          Wgmma<kTileRows>::bf16_registers(s, q_[i], values, i > 0);
        } else {
          Wgmma<kTileRows>::bf16(s, atom_descriptor(q + step), values, true);
        }
      }
    }
    wgmma_commit();
  }
  // Of the item's tile `t`, once the products have ended.
  __device__ void finish(int t, TileScores& s) const {
    scale_scores(s, [&] { return rows() - t * kTileRows; });
  }

  // Weights of the item's tile `t`, the block's `tile`, in place of its scores, and to shared memory; their sums.
  __device__ void weigh(int t, int tile, TileScores& s) const {
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      const WeightReference& own = reference_[i % 4 / 2];
      s[i] = kShifted ? own.weight(s[i]) : own.unshifted_weight(s[i]);
    }
    float sums[2][2];
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sums[step][half] = step_sum(s, step, half);
    }
    WeightWords words;
    round_weights(s, words);
    store_weights(words, fragment_address(shared_address(shared_.weights[tile % 2]), first_row(), lane()));
    fence_async_proxy();
    barrier_arrive(shared_address(&shared_.weights_full[tile % 2]));
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = head_sum(sums[step][half]);
        if (lane() % 4 == 0) shared_.sum[2 * (t % 2) + step][head(half)] += sum;
      }
    }
  }

  // The greatest scores of the thread's two heads over all rows, whose tiles are used up then.
  __device__ void find_greatest(int tiles, int& tile, float (&greatest)[2]) {
    greatest[0] = greatest[1] = -INFINITY;
#pragma unroll 1
    for (int t = 0; t < tiles; ++t, ++tile) {
      TileScores s;
      start(tile, s);
      wgmma_wait<0>();
      hold_queries();
      finish(t, s);
      barrier_arrive(shared_address(&shared_.weights_full[tile % 2]));  // there are none: the slot may be freed
      raise_maxima(s, kTileRows, greatest);
    }
#pragma unroll
    for (float& value : greatest) value = head_maximum(value);
  }

  // What weights are relative to, from the scores of the item's first tiles, of two at the most; sums begin.
  template <class... Tiles>
  __device__ void begin_sums(const float (&greatest)[2], const Tiles&... tiles) {
    float window_max[2] = {-INFINITY, -INFINITY};
    int window = shared_.item[at_].reference_rows;
    ((raise_maxima(tiles, window, window_max), window -= kTileRows), ...);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      window_max[half] = head_maximum(window_max[half]);
      if constexpr (kShifted) {
        reference_[half] = weight_reference(window_max[half], greatest[half]);
      } else {
        reference_[half] = {window_max[half], 0.0f};
      }
      if (lane() % 4 != 0) continue;
#pragma unroll
      for (int chain = 0; chain < 4; ++chain) shared_.sum[chain][head(half)] = 0.0f;
    }
  }

  // What outputs are multiplied by. Heads without a shift whose sums are so great that they may need one call for a
  // second round from the block's item `i` on.
  __device__ void publish_factors(int i) const {
    bool uncertain = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane() % 4 != 0) continue;
      const int own = head(half);
      const auto& sum = shared_.sum;
      const float all = (sum[0][own] + sum[1][own]) + (sum[2][own] + sum[3][own]);
      uncertain = uncertain || !(all <= 0x1p59f);
      const WeightReference& reference = reference_[half];
      shared_.factor[at_][own] = reciprocal(all + reference.sink_weight(shared_.sink[at_][own]));
    }
    barrier_arrive(shared_address(&shared_.factor_full[at_]));
    if (!kShifted && uncertain) atomicMin(&shared_.first_shifted, i);
  }

  __device__ void score_rows(int i) {
    const int tiles = shared_.item[at_].tiles();
    int tile = shared_.item[at_].first_tile;
    float greatest[2];
    if constexpr (kShifted) find_greatest(tiles, tile, greatest);
    TileScores first;
    int t = 0;
#pragma unroll 1
    for (; t + 1 < tiles; t += 2, tile += 2) {
      TileScores second;
      start(tile, first);
      start(tile + 1, second);
      wgmma_wait<1>();
      finish(t, first);
      if (t == 0) {
        wgmma_wait<0>();
        wgmma_hold(second);
        finish(1, second);
        begin_sums(greatest, first, second);
      }
      weigh(t, tile, first);
      wgmma_wait<0>();
      hold_queries();
      wgmma_hold(second);
      if (t + 2 >= tiles) leave_queries(i, 1);
      if (t > 0) finish(t + 1, second);
      weigh(t + 1, tile + 1, second);
    }
    if (t < tiles) {
      start(tile, first);
      wgmma_wait<0>();
      hold_queries();
      leave_queries(i, 1);
      finish(t, first);
      if (t == 0) begin_sums(greatest, first);
      weigh(t, tile, first);
    }
    publish_factors(i);
  }

  const AttendParams& p_;
  const CUtensorMap& queries_;
  const BlockPass& pass_;
  PromptShared& shared_;
  int at_ = 0;     // where the item is
  int phase_ = 0;  // its queries' barriers have this parity
  std::uint32_t q_[kSteps][4];
  WeightReference reference_[2];
};

#endif

}  // namespace dsv4rt::cuda
