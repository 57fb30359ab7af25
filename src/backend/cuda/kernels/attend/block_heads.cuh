// The consumers of block_plan.cuh: scores, weights and outputs of 64 heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/dense_plan.cuh"
#include "backend/cuda/kernels/attend/half_sums.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/split_merge.cuh"
#include "backend/cuda/kernels/attend/tile_scores.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where all consumers meet, twice an item: `time` 0 and 1. They come from different places of the code: hence not one
// of the barriers by name. Every thread arrives for itself: racecheck does not see a warp behind one of its lanes, nor
// behind an arrival at a barrier by name.
__device__ inline void meet_consumers(BlockShared& shared, int time) {
  barrier_arrive(shared_address(&shared.meeting));
  barrier_wait(shared_address(&shared.meeting), time);
}

template <class Pass>
class BlockConsumer {
  static constexpr bool kSplits = Pass::kSplits;    // an item is a split of a token, and sums are what is left of it
  static constexpr bool kDecoded = Pass::kDecoded;  // rows come decoded, and slots are full again soon

 public:
  // A warpgroup's part of the item at `at`: of the block's n-th one n % 2, or kRehearsal. What it exchanges with the
  // other one has the item's own place, where nobody looks any more at what the item two before left: a barrier of both
  // lies between.
  __device__ BlockConsumer(const AttendParams& params, int at, BlockShared& shared)
      : p_(params), shared_(shared), at_(at) {}

  // Greatest scores of the thread's two heads over all rows, whose tiles are used up. Either warpgroup scores all of
  // them.
  __device__ void find_greatest(float (&greatest)[2]) {
    greatest[0] = greatest[1] = -INFINITY;
    TileScores s;
#pragma unroll 1
    for (int tile = 0; tile < tiles(); ++tile) {
      start_scores(tile, s);
      wgmma_wait<0>();
      finish_scores(tile, s);
      release(tile % 2);
      raise_maxima(s, kTileRows, greatest);
    }
    agree(greatest);
    rounds_ = 1;
  }

  // Everything up to the sums of values and of weights. kShifted: heads may have a shift, or a greater power,
  // `greatest` are find_greatest()'s. The even warpgroup calls next() when the queries are not needed any more; true:
  // heads without a shift that may need one.
  template <bool kShifted, class Next>
  __device__ bool sum(const float (&greatest)[2], const Pass& pass, const Next& next) {
    if (group() == 0) {
      lead<kShifted>(greatest, pass, next);
    } else {
      follow<kShifted>(greatest, pass);
      if (tiles() % 2 == 1) follow_even(tiles() - 1);
    }
    return end_sums<kShifted>();
  }

  // What sum() left, divided, rounded, turned, maybe encoded, and out through the slot of the last tile, which is then
  // free.
  __device__ void write(const CUtensorMap& outputs) {
    // Read here: the addresses that follow from it would otherwise be computed ahead of all tiles, and spilled.
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    const int lane = thread % 32;
    const int first_row = thread / 32 % 4 * 16;
    const int group = BlockConsumer::group();
    const int slot = (tiles() - 1) % 2;
    const std::uint32_t half = shared_address(shared_.slot[slot]) + group * kHalfAtoms * kAtomBytes;
    const bool turns = group == 1 && p_.output_rope.inverse_frequency != nullptr;
    constexpr int kBoxes = Pass::kEncodes ? kHalfParts : kHalfAtoms;
    constexpr int kColumns = kHalfValues / kBoxes;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const std::uint32_t atom = half + box * kAtomBytes;
      if constexpr (Pass::kEncodes) {
        stage_encoded_block(*p_.encoded, p_.heads, shared_.item[at()].token, shared_.item[at()].first_head + first_row,
                            group, box, o_, factor_, turns, shared_.rotation[at()], code_address(atom, first_row, lane),
                            lane);
      } else {
        stage_outputs(o_, factor_, box, turns && box == kBoxes - 1, shared_.rotation[at()],
                      fragment_address(atom, first_row, lane), lane);
      }
      fence_async_proxy();
      __syncwarp();
      if (lane == 0) {
        store_box_of_matrix(&outputs, (group * kBoxes + box) * kColumns, shared_.item[at()].first_head + first_row,
                            shared_.item[at()].token, atom + first_row * kAtomRowBytes);
      }
    }
    if (lane != 0) return;
    commit_stores();
    wait_stores_read<0>();
    release(slot);
  }

  // What sum() left, as it is: quads of this thread, 128 apart, and [head] the power and the sum of weights.
  template <bool kShifted>
  __device__ void write_sums(float4* sums, float2* states) const {
    sums += group() * kSumQuads * 128 + static_cast<int>(threadIdx.x) % 128;
    store_quads(sums);
    if (group() != 0 || lane() % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      states[head(half)] = make_float2(reference<kShifted>(half).power, factor_[half]);
    }
  }

  // The same in a run of splits, of which this one is number `step`: those behind the first one are added to what lies
  // there.
  template <bool kShifted>
  __device__ void write_run_sums(int step, float4* sums, float2* states) {
    const int own = group();  // read by all lanes
    sums += own * kSumQuads * 128 + static_cast<int>(threadIdx.x) % 128;
    float2 state[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) state[half] = make_float2(reference<kShifted>(half).power, factor_[half]);
    if (step == 0) {
      store_quads(sums);
    } else {
      SplitMerge merges[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 run = shared_.run_state[own][head(half)];
        merges[half] = split_merge(run.x, state[half].x);
        state[half] = make_float2(merges[half].power, merges[half](run.y, state[half].y));
      }
      add_sums(merges, sums);
      __syncwarp();  // all lanes of a head have read the run's state
    }
    if (lane() % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      shared_.run_state[own][head(half)] = state[half];
      if (own == 0) states[head(half)] = state[half];
    }
  }

  // What sum() left to the block that goes on with the token.
  __device__ void hand_on(const Pass& pass) {
    int block;  // read here, as thread in write()
    int thread;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    release((tiles() - 1) % 2);
    float4* sums = pass.sums + std::int64_t{block} * kSplitQuads + group() * kSumQuads * 128 + thread % 128;
    store_quads(sums);
    auto& state = pass.states[block];
    const int item = at();
    if (thread < 2 * kTileHeads) (&state.row_max[0][0])[thread] = (&shared_.row_max[item][0][0])[thread];
    (&state.sum[0][0])[thread] = (&shared_.sum[item][0][0])[thread];
    static_assert(kBlockConsumers == 4 * kTileHeads);
    named_sync(kQueriesBarrier, kBlockConsumers);
    if (thread == 0) store_release(pass.handed + block, 1u);
  }

 private:
  // Computed or read where they are needed: registers are full of sums and scores.
  [[nodiscard]] __device__ int at() const {
    int value;  // to the compiler another one each time: it would keep, or spill, addresses that follow from it
    asm volatile("mov.s32 %0, %1;\n" : "=r"(value) : "r"(at_));
    return value;
  }
  // Slots are neither waited for nor given back then, and nothing leaves shared memory.
  [[nodiscard]] __device__ bool rehearses() const {
    return at() == kRehearsal;
  }
  __device__ static int lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }
  __device__ static int warp() {
    return static_cast<int>(threadIdx.x) / 32;
  }
  __device__ static int group() {
    return __shfl_sync(0xffffffffu, warp() / 4, 0);
  }  // known to be uniform
  [[nodiscard]] __device__ int rows() const {
    int value;
    asm volatile("ld.shared.s32 %0, [%1];\n" : "=r"(value) : "r"(shared_address(&shared_.item[at()].rows)));
    return value;
  }
  [[nodiscard]] __device__ int tiles() const {
    return (rows() + kTileRows - 1) / kTileRows;
  }
  // The head that this thread's accumulators in the half given belong to.
  [[nodiscard]] __device__ int head(int half) const {
    return warp() % 4 * 16 + half * 8 + lane() / 4;
  }

  __device__ void wait_full(int tile) const {
    if (rehearses()) return;
    const int slot = tile % 2;
    int filled = slot == 0 ? shared_.item[at()].filled[0] : shared_.item[at()].filled[1];
    if (rounds_ > 0) filled += (tiles() + 1 - slot) / 2;
    barrier_wait(shared_address(&shared_.full[slot]), (filled + tile / 2) & 1);
    fence_async_proxy();
  }
  // This warp arrives, one of the eight that free a slot.
  __device__ void release(int slot) const {
    if (lane() == 0 && !rehearses()) barrier_arrive(shared_address(&shared_.empty[slot]));
  }
  // The same behind a tile's values; outputs of tokens pass through the last tile's slot first.
  __device__ void release_values(int tile) const {
    if (kSplits || tile + 1 < tiles()) release(tile % 2);
  }

  // --- sums that other blocks or kernels go on with ----------------------------------------------------------

  [[nodiscard]] __device__ float4 quad(int i) const {
    const float* own = &o_[i / (kSumQuads / kHalfParts)][i % (kSumQuads / kHalfParts) * 4];
    return make_float4(own[0], own[1], own[2], own[3]);
  }
  __device__ void store_quads(float4* to) const {
#pragma unroll
    for (int i = 0; i < kSumQuads; ++i) to[i * 128] = quad(i);
  }
  // Adds the thread's quads to those that it has left at `to`. Nothing comes back, but where a power has changed.
  __device__ void add_sums(const SplitMerge (&merges)[2], float4* to) const {
    const bool rescaled = __any_sync(0xffffffffu, merges[0].kept != 1.0f || merges[1].kept != 1.0f);
#pragma unroll
    for (int i = 0; i < kSumQuads; ++i) {
      const float4 own = quad(i);
      if (rescaled) {
        const float4 run = load_global_quad(to + i * 128);
        to[i * 128] = make_float4(merges[0](run.x, own.x), merges[0](run.y, own.y), merges[1](run.z, own.z),
                                  merges[1](run.w, own.w));
      } else {
        add_to_global(to + i * 128,
                      make_float4(multiply_flushed(own.x, merges[0].added), multiply_flushed(own.y, merges[0].added),
                                  multiply_flushed(own.z, merges[1].added), multiply_flushed(own.w, merges[1].added)));
      }
    }
  }

  // --- scores ---------------------------------------------------------------------------------------------

  __device__ void start_scores(int tile, TileScores& s) const {
    wait_full(tile);
    const std::uint32_t q = atom_word(shared_address(shared_.q), 16);
    const std::uint32_t k = atom_word(shared_address(shared_.slot[tile % 2]), 16);
    wgmma_hold(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      const int step = (i / 4 * kAtomBytes + i % 4 * 32) / 16;
      Wgmma<kTileRows>::bf16(s, atom_descriptor(q + step), atom_descriptor(k + step), i > 0);
    }
    wgmma_commit();
  }
  __device__ void finish_scores(int tile, TileScores& s) const {
    scale_scores(s, [&] { return rows() - tile * kTileRows; });
  }
  // Turns the threads' maxima into those of heads.
  __device__ static void agree(float (&greatest)[2]) {
#pragma unroll
    for (float& value : greatest) value = head_maximum(value);
  }

  // --- weights --------------------------------------------------------------------------------------------

  template <bool kShifted>
  [[nodiscard]] __device__ auto reference(int half) const {
    const float greatest = fmaxf(shared_.row_max[at()][0][head(half)], shared_.row_max[at()][1][head(half)]);
    if constexpr (kSplits) {
      return kShifted ? PowerReference{shift_[half]} : power_reference(greatest);
    } else {
      return WeightReference{.window_max = greatest, .shift = kShifted ? shift_[half] : 0.0f};
    }
  }

  // What is left of a thread's scores of a tile: rounded weights, and of each step of 32 rows and each of its heads the
  // sum of those that are not.
  struct TileWeights {
    WeightWords words;
    float sums[2][2];
  };
  // Rounded weights go to shared memory, too. What is added up here needs no scores later.
  template <bool kShifted>
  __device__ void weigh(TileScores& s, TileWeights& weights) {
    const decltype(reference<kShifted>(0)) references[2] = {reference<kShifted>(0), reference<kShifted>(1)};
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      const auto& own = references[i % 4 / 2];
      if constexpr (kShifted && !kSplits) {
        s[i] = own.weight(s[i]);
      } else {
        s[i] = own.unshifted_weight(s[i]);
      }
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) weights.sums[step][half] = step_sum(s, step, half);
    }
    round_weights(s, weights.words);
    store_weights(weights.words, fragment_address(shared_address(shared_.weights[group()]), warp() % 4 * 16, lane()));
    fence_async_proxy();
  }
  // Adds the sums that weigh() left; others do not wait for it.
  __device__ void add_weights(const TileWeights& weights) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float sum = head_sum(weights.sums[step][half]);
        const int own = group();
        if (lane() % 4 == 0) shared_.sum[at()][2 * own + step][head(half)] += sum;
      }
    }
  }

  // --- values ---------------------------------------------------------------------------------------------

  [[nodiscard]] __device__ std::uint32_t values(int slot) const {
    return atom_word(shared_address(shared_.slot[slot]) + group() * (kAtoms / 2) * kAtomBytes, kAtomBytes);
  }
  // Starts the products of a slot's values with its weights.
  __device__ void multiply(int slot) {
    const std::uint32_t v = values(slot);
    const std::uint32_t weights = atom_word(shared_address(shared_.weights[slot]), 16);
    start_half_products(o_, weights, v);
  }

  // Values of the warpgroup's own tile, with weights that it has in registers where these are enough, and its sums of
  // weights beside them. kGroup: the warpgroup's number.
  template <int kGroup>
  __device__ void sum_own(int tile, TileWeights& weights) {
    if constexpr (kDecoded) {
      start_half_products(o_, weights.words, values(kGroup));
    } else {
      named_sync(kGroup == 0 ? kEvenBarrier : kOddBarrier, kBlockConsumers / 2);
      multiply(kGroup);
    }
    add_weights(weights);
    wgmma_wait<0>();
    if constexpr (kDecoded) wgmma_hold(weights.words);
    release_values(tile);
    hold_half_sums(o_);
  }

  // What weights are relative to, and sums to begin with. `s`: scores of tile kGroup, if there is one.
  template <int kGroup, bool kShifted, class... Tiles>
  __device__ void begin(const float (&greatest)[2], const Pass& pass, const Tiles&... s) {
    if constexpr (Pass::kHands && !kShifted) {
      if (uniform(!rehearses() && shared_.resumes[at()])) {
        resume<kGroup>(pass);
        return;
      }
    }
    float window_max[2] = {-INFINITY, -INFINITY};
    (raise_maxima(s, shared_.item[at()].reference_rows - kGroup * kTileRows, window_max), ...);
    agree(window_max);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane() % 4 != 0) continue;
      shared_.row_max[at()][kGroup][head(half)] = window_max[half];
      shared_.sum[at()][2 * kGroup][head(half)] = shared_.sum[at()][2 * kGroup + 1][head(half)] = 0.0f;
    }
    meet_consumers(shared_, 0);
    if constexpr (kShifted) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if constexpr (kSplits) {
          shift_[half] = second_power(reference<false>(half), greatest[half]).power;
        } else {
          shift_[half] = weight_reference(reference<false>(half).window_max, greatest[half]).shift;
        }
      }
    }
#pragma unroll
    for (auto& part : o_) {
#pragma unroll
      for (float& value : part) value = 0.0f;
    }
  }

  // The same from where the block before has left the token.
  template <int kGroup>
  __device__ void resume(const Pass& pass) {
    int block;
    int thread;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    --block;
    wait_for_flag(pass.handed + block);
    const float4* sums = pass.sums + std::int64_t{block} * kSplitQuads + kGroup * kSumQuads * 128 + thread % 128;
#pragma unroll
    for (int i = 0; i < kSumQuads; ++i) {
      const float4 own = load_global_quad(sums + i * 128);
      float* to = &o_[i / (kSumQuads / kHalfParts)][i % (kSumQuads / kHalfParts) * 4];
      to[0] = own.x;
      to[1] = own.y;
      to[2] = own.z;
      to[3] = own.w;
    }
    const auto& state = pass.states[block];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (lane() % 4 != 0) continue;
      const int own = head(half);
      shared_.row_max[at()][kGroup][own] = __ldcg(&state.row_max[kGroup][own]);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        shared_.sum[at()][2 * kGroup + step][own] = __ldcg(&state.sum[2 * kGroup + step][own]);
      }
    }
    meet_consumers(shared_, 0);
    // All have seen it. Nobody looks before the next operation.
    if (thread == 0) pass.handed[block] = 0;
  }

  // The even warpgroup: tiles 0, 2, .. and the values of all. The scores of its next tile are behind the odd tile's
  // values in the matrix units. A slot is free as soon as its values are summed. Both warpgroups weigh all of their
  // tiles in one place of the code, since what runs for the first time may come from memory.
  template <bool kShifted, class Next>
  __device__ void lead(const float (&greatest)[2], const Pass& pass, const Next& next) {
    TileScores s;
    start_scores(0, s);
    wgmma_wait<0>();
    finish_scores(0, s);
    begin<0, kShifted>(greatest, pass, s);
    TileWeights weights;
    int tile = 0;
#pragma unroll 1
    while (true) {
      weigh<kShifted>(s, weights);
      named_arrive(kEvenWeightsBarrier, kBlockConsumers);
      if (tile + 2 >= tiles()) break;
      sum_own<0>(tile, weights);
      start_odd(tile + 1);
      tile += 2;
      start_scores(tile, s);
      wgmma_wait<1>();
      release(1);
      wgmma_wait<0>();
      hold_half_sums(o_);
      finish_scores(tile, s);
    }
    if (tile + 1 == tiles()) next();
    sum_own<0>(tile, weights);
    if (tile + 1 < tiles()) {
      start_odd(tile + 1);
      next();
      wgmma_wait<0>();
      release_values(tile + 1);
      hold_half_sums(o_);
    }
  }
  // Starts the products of an odd tile's values, once its weights are there: the other warpgroup has scored it.
  __device__ void start_odd(int tile) {
    named_sync(kOddWeightsBarrier, kBlockConsumers);
    wait_full(tile);
    multiply(1);
  }
  // The odd one: tiles 1, 3, .., and the values of each tile before, which come first: its slot is then free for the
  // next one, which takes the producers long to decode. Of rows that come decoded the scores go first, and are weighed
  // beside these values. Tile 1 is scored and weighed before them always: weights wait for the scores of both.
  template <bool kShifted>
  __device__ void follow(const float (&greatest)[2], const Pass& pass) {
    if (tiles() == 1) {
      begin<1, kShifted>(greatest, pass);
      return;
    }
    TileScores s;
    start_scores(1, s);
    wgmma_wait<0>();
    finish_scores(1, s);
    begin<1, kShifted>(greatest, pass, s);
    TileWeights weights;
    int tile = 1;
#pragma unroll 1
    while (true) {
      weigh<kShifted>(s, weights);
      // In this order: a rehearsal waits for no slots, and the even warpgroup could otherwise be two tiles ahead.
      if (tile == 1) start_even(0);
      named_arrive(kOddWeightsBarrier, kBlockConsumers);
      if (tile == 1 || kDecoded) end_even(tile - 1);
      sum_own<1>(tile, weights);
      if (tile + 2 >= tiles()) break;
      tile += 2;
      if constexpr (kDecoded) {
        start_scores(tile, s);
        start_even(tile - 1);
        wgmma_wait<1>();
      } else {
        follow_even(tile - 1);
        start_scores(tile, s);
        wgmma_wait<0>();
      }
      finish_scores(tile, s);
    }
  }
  // Values of a tile of the even warpgroup's.
  __device__ void follow_even(int tile) {
    start_even(tile);
    end_even(tile);
  }
  __device__ void start_even(int tile) {
    named_sync(kEvenWeightsBarrier, kBlockConsumers);
    wait_full(tile);
    multiply(0);
  }
  __device__ void end_even(int tile) {
    wgmma_wait<0>();
    release_values(tile);
    hold_half_sums(o_);
  }

  // What outputs are multiplied by, of a split the sums of weights; true: these are so great that a head may need a
  // shift, or another power.
  template <bool kShifted>
  __device__ bool end_sums() {
    bool uncertain = false;
    meet_consumers(shared_, 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float chain[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) chain[i] = shared_.sum[at()][i][head(half)];
      const float all = (chain[0] + chain[1]) + (chain[2] + chain[3]);
      uncertain = uncertain || !(all <= 0x1p59f);
      if constexpr (kSplits) {
        factor_[half] = all;
      } else {
        const int h = shared_.item[at()].first_head + head(half);
        const float sink = h < p_.heads ? p_.sink[h] : 0.0f;
        factor_[half] = reciprocal(all + reference<kShifted>(half).sink_weight(sink));
      }
    }
    return uncertain;
  }

  const AttendParams& p_;
  BlockShared& shared_;
  int at_;          // where the item is
  int rounds_ = 0;  // passes over the token's rows that are over
  HalfSums o_;
  float shift_[2] = {0.0f, 0.0f};  // shifts of the thread's heads, in the second round; powers where items are splits
  float factor_[2];
};

#endif

}  // namespace dsv4rt::cuda
