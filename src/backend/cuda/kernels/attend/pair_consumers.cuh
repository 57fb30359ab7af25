// Scorers and summers of pair_plan.cuh.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/half_sums.cuh"
#include "backend/cuda/kernels/attend/pair_plan.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/tile_scores.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The `fill`-th tile of all passes is there.
__device__ inline void wait_pair_tile(PairShared& shared, int fill) {
  barrier_wait(shared_address(&shared.full[fill % kPairSlots]), fill / kPairSlots & 1);
  fence_async_proxy();
}

// A warpgroup of scorers: tiles group, group + 2, .. of the token.
class PairScorer {
 public:
  __device__ PairScorer(const AttendParams& params, int rank, int group, PairShared& shared)
      : p_(params), shared_(shared), rank_(rank), group_(group), rows_(shared.item.rows) {}

  // A pass over the rows, before which the slots were filled `filled` times.
  __device__ void run(PairPass pass, int filled) {
    const int tiles = (rows_ + kTileRows - 1) / kTileRows;
#pragma unroll
    for (auto& step : sum_) step[0] = step[1] = 0.0f;
#pragma unroll 1
    for (int tile = group_; tile < tiles; tile += 2, ++done_) {
      TileScores s;
      if (rank_ == 0) {
        multiply<false>(filled + tile, s);
        wgmma_wait<0>();
        wgmma_hold(s);
        if (pass == PairPass::kGreatest) release(filled + tile);
        send(s);
        continue;
      }
      take(s);
      // One warpgroup multiplies while the other weighs; both at once would take as long as one after the other.
      if (tile > 0) barrier_wait(shared_address(&shared_.turn[group_]), turns_++ & 1);
      multiply<true>(filled + tile, s);
      if (lane() == 0) barrier_arrive_readers(block_address(shared_address(&shared_.partial_free[group_]), 0));
      wgmma_wait<0>();
      if (tile + 1 < tiles && lane() == 0) barrier_arrive(shared_address(&shared_.turn[1 - group_]));
      scale_scores(s, [&] { return rows_ - tile * kTileRows; });
      if (pass == PairPass::kGreatest) {
        release(filled + tile);
        raise_maxima(s, kTileRows, greatest_);
        continue;
      }
      if (pass == PairPass::kPlain && tile == group_) {
        raise_maxima(s, shared_.item.window - tile * kTileRows, window_max_);
        agree_on_window();
      }
      weigh(s, pass == PairPass::kShifted);
    }
    if (rank_ == 0) return;
    if (pass == PairPass::kGreatest) {
      agree_on_greatest();
      return;
    }
    if (pass == PairPass::kPlain && group_ == 1 && tiles == 1) agree_on_window();
    publish_factors(pass == PairPass::kPlain);
  }

  // Behind all passes: what the other block's threads tell this warpgroup has come, so that this block may end.
  __device__ void finish() const {
    if (rank_ == 0 && done_ > 0) barrier_wait_cluster(shared_address(&shared_.partial_free[group_]), (done_ - 1) & 1);
    if (rank_ == 1 && weighed_ > 0) {
      barrier_wait_cluster(shared_address(&shared_.weights_free[group_]), (weighed_ - 1) & 1);
    }
  }

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int thread() {
    return static_cast<int>(threadIdx.x) % 128;
  }
  // The head that this thread's accumulators in the half given belong to.
  [[nodiscard]] __device__ static int head(int half) {
    return thread() / 32 * 16 + half * 8 + lane() / 4;
  }
  __device__ void release(int fill) const {
    __syncwarp();
    if (lane() == 0) barrier_arrive(shared_address(&shared_.empty[fill % kPairSlots]));
  }

  // Starts the products of the block's half of the values.
  template <bool kAdds>
  __device__ void multiply(int fill, TileScores& s) const {
    wait_pair_tile(shared_, fill);
    const std::uint32_t q = atom_word(shared_address(shared_.q), 16);
    const std::uint32_t k = atom_word(shared_address(shared_.slot[fill % kPairSlots]), 16);
    wgmma_hold(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHalfValues / 16; ++i) {
      const int step = (i / 4 * kAtomBytes + i % 4 * 32) / 16;
      Wgmma<kTileRows>::bf16(s, atom_descriptor(q + step), atom_descriptor(k + step), kAdds || i > 0);
    }
    wgmma_commit();
  }

  // The first block's part to the second one, and there.
  __device__ void send(const TileScores& s) {
    if (done_ > 0) barrier_wait_cluster(shared_address(&shared_.partial_free[group_]), (done_ - 1) & 1);
    const std::uint32_t to = block_address(shared_address(&shared_.partial[group_][0][thread()]), 1);
    const std::uint32_t full = block_address(shared_address(&shared_.partial_full[group_]), 1);
#pragma unroll
    for (int i = 0; i < kTileRows / 8; ++i) {
      store_cluster(to + i * static_cast<int>(sizeof(shared_.partial[0][0])),
                    make_float4(s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]), full);
    }
  }
  __device__ void take(TileScores& s) {
    const std::uint32_t full = shared_address(&shared_.partial_full[group_]);
    if (thread() == 0) barrier_arrive_expect(full, kPartialBytes);
    barrier_wait_cluster(full, done_ & 1);
#pragma unroll
    for (int i = 0; i < kTileRows / 8; ++i) {
      const float4 four = shared_.partial[group_][i][thread()];
      s[4 * i] = four.x, s[4 * i + 1] = four.y, s[4 * i + 2] = four.z, s[4 * i + 3] = four.w;
    }
  }

  // Turns a thread's maxima into those of its heads, over both warpgroups, which may be at different places of the
  // code: hence not one of the barriers by name. Every thread arrives for itself: racecheck does not see a warp behind
  // one of its lanes.
  __device__ void agree(float (&value)[2], float (&shared)[2][kTileHeads], int phase) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      value[half] = head_maximum(value[half]);
      if (lane() % 4 == 0) shared[group_][head(half)] = value[half];
    }
    const std::uint32_t maxima = shared_address(&shared_.maxima);
    barrier_arrive(maxima);
    barrier_wait(maxima, phase);
#pragma unroll
    for (int half = 0; half < 2; ++half) value[half] = fmaxf(shared[0][head(half)], shared[1][head(half)]);
  }
  __device__ void agree_on_window() {
    agree(window_max_, shared_.window_max, 0);
  }
  __device__ void agree_on_greatest() {
    agree(greatest_, shared_.greatest, 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) shift_[half] = weight_reference(window_max_[half], greatest_[half]).shift;
  }
  [[nodiscard]] __device__ WeightReference reference(int half) const {
    return {.window_max = window_max_[half], .shift = shift_[half]};
  }

  // Weights: unrounded ones to the sums, rounded ones to both blocks' shared memory.
  __device__ void weigh(TileScores& s, bool shifted) {
    if (shifted) [[unlikely]] {
      weigh_shifted(reference(0), reference(1), s);
    } else {
#pragma unroll
      for (int i = 0; i < kTileRows / 2; ++i) s[i] = reference(i % 4 / 2).unshifted_weight(s[i]);
    }
    if (weighed_ > 0) barrier_wait_cluster(shared_address(&shared_.weights_free[group_]), (weighed_ - 1) & 1);
    ++weighed_;
    const std::uint32_t own = shared_address(shared_.weights[group_]);
    WeightWords words;
    round_weights(s, words);
    store_weights(words, fragment_address(own, thread() / 32 * 16, lane()));
    fence_async_proxy();
    named_sync(kPairWeightsBarrier + group_, 128);
    if (thread() == 0) {
      const std::uint32_t full = shared_address(&shared_.weights_full[group_]);
      copy_bulk_cluster(own, kAtomBytes, full, 0);
      barrier_arrive(full);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) sum_[step][half] += head_sum(step_sum(s, step, half));
    }
  }

  // What outputs are multiplied by, to both blocks.
  __device__ void publish_factors(bool plain) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (lane() % 4 == 0) shared_.sum[2 * group_ + i / 2][head(i % 2)] = sum_[i / 2][i % 2];
    }
    named_sync(kPairScorersBarrier, kPairScorers);
    if (group_ != 0) return;
    const int half = lane() % 2;
    const int h = shared_.item.first_head + head(half);
    const float sink = h < p_.heads ? p_.sink[h] : 0.0f;
    float chain[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) chain[i] = shared_.sum[i][head(half)];
    const float all = (chain[0] + chain[1]) + (chain[2] + chain[3]);
    const WeightReference own = half == 0 ? reference(0) : reference(1);
    const float factor = reciprocal(all + own.sink_weight(sink));
    const bool uncertain = named_sync_any(kPairWeightsBarrier, 128, plain && !(all <= 0x1p59f));
    if (lane() % 4 > 1) return;
    const std::uint32_t to = shared_address(&shared_.factor[plain ? 0 : 1][head(half)]);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      store_cluster(block_address(to, block), make_float2(factor, uncertain ? 1.0f : 0.0f),
                    block_address(shared_address(&shared_.factors), block));
    }
  }

  const AttendParams& p_;
  PairShared& shared_;
  int rank_;
  int group_;
  int rows_;
  int done_ = 0;     // tiles in all passes
  int turns_ = 0;    // at the matrix unit that were waited for
  int weighed_ = 0;  // those of them whose weights were made
  // Of the thread's two heads.
  float window_max_[2] = {-INFINITY, -INFINITY};
  float greatest_[2] = {-INFINITY, -INFINITY};
  float shift_[2] = {0.0f, 0.0f};
  float sum_[2][2];  // [step of a tile][head]
};

class PairSummer {
 public:
  __device__ PairSummer(const AttendParams& params, int rank, PairShared& shared)
      : p_(params), shared_(shared), rank_(rank) {}

  // A pass over the rows, before which the slots were filled `filled` times.
  __device__ void run(int filled) {
    const int tiles = (shared_.item.rows + kTileRows - 1) / kTileRows;
#pragma unroll
    for (auto& part : o_) {
#pragma unroll
      for (float& value : part) value = 0.0f;
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int place = tile % 2;
      multiply(filled + tile, place, pass_ * ((tiles + 1 - place) / 2) + tile / 2);
      // At once, not when the next tile's weights are there: a tile's way to them is long, and its slot is waited for.
      wgmma_wait<0>();
      hold_half_sums(o_);
      release(filled + tile, place);
    }
    ++pass_;
  }

  // What the passes left, times factors, rounded, turned, maybe encoded, and out through the queries' place, 16 heads x
  // 64 values, or 128 codes, at a time by each warp.
  __device__ void write() {
    const PairItem& item = shared_.item;
    const int first_head = item.first_head + warp() * 16;
    const float2* factors = shared_.factor[pass_ - 1] + warp() * 16 + lane() / 4;
    const float factor[2] = {factors[0].x, factors[8].x};
    static_assert(sizeof(shared_.q) >= kPairSummers / 32 * kStagedOutputBytes);
    std::byte* staged = shared_.q + warp() * kStagedOutputBytes;
    const bool turns = rank_ == 1 && p_.output_rope.inverse_frequency != nullptr;
    if (p_.encoded) {
      write_encoded_half(*p_.encoded, p_.heads, item.token, first_head, rank_, o_, factor, staged, turns,
                         shared_.rotation, lane());
      return;
    }
    bf16* out = p_.o + (std::int64_t{item.token} * p_.heads + first_head) * kHeadDim + rank_ * kHalfValues;
    write_half_outputs(o_, factor, staged, out, p_.heads - first_head, turns, shared_.rotation, lane());
  }

 private:
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32 % 4;
  }

  // Starts the products of a tile's values with the `use`-th weights that come to its place.
  __device__ void multiply(int fill, int place, int use) {
    const std::uint32_t full = shared_address(&shared_.weights_full[place]);
    if (rank_ == 0 && threadIdx.x % 128 == 0) barrier_arrive_expect(full, kAtomBytes);
    barrier_wait_cluster(full, use & 1);
    wait_pair_tile(shared_, fill);
    const std::uint32_t v = atom_word(shared_address(shared_.slot[fill % kPairSlots]), kAtomBytes);
    const std::uint32_t weights = atom_word(shared_address(shared_.weights[place]), 16);
    start_half_products(o_, weights, v);
  }
  __device__ void release(int fill, int place) const {
    if (lane() != 0) return;
    barrier_arrive(shared_address(&shared_.empty[fill % kPairSlots]));
    barrier_arrive_readers(block_address(shared_address(&shared_.weights_free[place]), 1));
  }

  const AttendParams& p_;
  PairShared& shared_;
  int rank_;
  int pass_ = 0;  // passes that are over
  HalfSums o_;
};

#endif

}  // namespace dsv4rt::cuda
