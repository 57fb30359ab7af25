// The consumers of run_plan.cuh: 64 heads of one token by one warpgroup.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/encoded_outputs.cuh"
#include "backend/cuda/kernels/attend/query_norm.cuh"
#include "backend/cuda/kernels/attend/run_plan.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/rope.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/transpose_lanes.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"
#include "backend/ops.h"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// A token of a run.
struct RunToken {
  std::int32_t token = 0;
  std::int32_t position = 0;
  std::int32_t first_row = 0;  // where its window begins in the room
  std::int32_t window = 0;     // rows that it has
  std::int32_t compressed = 0;
};

// kNorms: whether queries get their norm and rotation here.
template <bool kCompresses, bool kNorms, bool kEncodes>
class RunConsumer {
 public:
  using Shape = RunShape<kCompresses>;
  using Room = typename Shape::Room;

  // Warpgroup `group` of the block.
  __device__ RunConsumer(const AttendParams& params, RunShared<kCompresses>& shared, int group, int first_head)
      : p_(params), shared_(shared), first_head_(first_head), group_(group), turn_phase_(group == 0 ? 1 : 0) {
#pragma unroll
    for (int half = 0; half < 2; ++half) sink_[half] = __ldg(p_.sink + head(half));
    if (rotates()) frequency_ = __ldg(p_.output_rope.inverse_frequency + lane_);
    pass_token(group);
  }

  __device__ void attend(const RunToken& token) {
    Rotation rotation;  // the lane's pair's
    if (rotates()) rotation = rotation_of(frequency_, p_.output_rope.inverse, token.position);
    const std::uint32_t compressed = shared_address(shared_.rows);
    const std::uint32_t window = compressed + token.first_row * kAtomRowBytes;
    Weights weights;
    float factor[2];
    {
      Scores s;
      score(window, compressed, rotation, s);
      weigh(token, s, weights, factor);
    }
    const Values values{Room::values(window), Room::values(compressed)};
    float o[kPartValues / 2] = {};
#pragma unroll 1
    for (int part = 0; part < kParts - 1; ++part) {
      multiply(values, part, weights, o);
      write<false>(token.token, part, o, factor, rotation);
    }
    multiply(values, kParts - 1, weights, o);
    write<true>(token.token, kParts - 1, o, factor, rotation);
    pass_token(kRunGroups - 1);
  }

  // For a token without rows: its queries give way to the next ones.
  __device__ void skip() {
    take_turn();
#pragma unroll 1
    for (int i = 0; i < kRunTokenAtoms<kNorms>; ++i) {
      barrier_wait(shared_address(&shared_.full[slot_]), phase_);
      __syncwarp();  // all lanes have seen this phase before it can pass
      release(slot_);
      pass_atoms(1);
    }
    give_turn();
    pass_token(kRunGroups - 1);
  }

 private:
  static constexpr int kWindowProducts = kRunWindow / 16;  // matrix products of outputs, 16 rows each
  static constexpr int kProducts = kWindowProducts + (kCompresses ? kRunCompressedRows / 16 : 0);
  static constexpr int kPartValues = 128;
  static constexpr int kParts = kHeadDim / kPartValues;
  static constexpr int kStepProducts = 2;  // weights are summed by 32 rows
  static constexpr int kAtomProducts = kAtomValues / 16;
  using Weights = uint4[kProducts];
  struct Scores {
    float window[kRunWindow / 2];
    float compressed[kRunCompressedRows / 2];
    // Of the `i`-th 16 rows.
    __device__ float* of(int i) {
      return i < kWindowProducts ? window + 8 * i : compressed + 8 * (i - kWindowProducts);
    }
  };

  // The head that this thread's accumulators in the half given belong to.
  [[nodiscard]] __device__ int head(int half) const {
    return first_head_ + warp_ % 4 * 16 + half * 8 + lane_ / 4;
  }
  [[nodiscard]] __device__ bool rotates() const {
    return p_.output_rope.inverse_frequency != nullptr;
  }

  // --- the ring of queries --------------------------------------------------------------------------------

  __device__ void release(int slot) {
    if (lane_ == 0) barrier_arrive(shared_address(&shared_.empty[slot]));
  }
  __device__ void pass_atoms(int count) {
    slot_ += count;
    phase_ ^= slot_ / Shape::kSlots & 1;
    slot_ %= Shape::kSlots;
  }
  __device__ void pass_token(int tokens) {
    pass_atoms(tokens * kRunTokenAtoms<kNorms>);
  }

  // The warpgroup's token is next to take queries: the phases of the ring tell one round from the next only.
  __device__ void take_turn() {
    barrier_wait(shared_address(&shared_.turn[group_]), turn_phase_);
    turn_phase_ ^= 1;
  }
  __device__ void give_turn() {
    if (lane_ == 0) barrier_arrive(shared_address(&shared_.turn[(group_ + 1) % kRunGroups]));
  }

  // --- norm and rotation of queries -----------------------------------------------------------------------

  using Queries = std::uint32_t[kAtomProducts][4];  // 64 values of the warp's heads, as fragments of matrices

  // Where the row of 16 values lies that the lane names for the slot's `i`-th fragments.
  [[nodiscard]] __device__ std::uint32_t fragments_of_slot(int i) const {
    const std::uint32_t atom = shared_address(shared_.queries[0]) + slot_ * kAtomBytes;
    return fragment_address(atom, warp_ % 4 * 16, lane_) ^ (2 * i * kUnitBytes);
  }
  __device__ void load_queries(Queries& queries) const {
    __syncwarp();  // lanes load together, and have waited for the queries each for itself
#pragma unroll
    for (int i = 0; i < kAtomProducts; ++i) load_matrix_x4(queries[i], fragments_of_slot(i));
  }

  // What the thread's two heads are multiplied by, from the first pass of their queries.
  __device__ void find_scales(float eps, std::uint32_t (&scale)[2]) {
    HeadSquares squares[2];
#pragma unroll 1
    for (int atom = 0; atom < kAtoms; ++atom) {
      barrier_wait(shared_address(&shared_.full[slot_]), phase_);
      Queries queries;
      load_queries(queries);
#pragma unroll
      for (const auto& words : queries) {
        squares[0].add(words[0], words[2]);
        squares[1].add(words[1], words[3]);
      }
      // Loads end before the copy engine writes the next values: the arrival alone does not wait for them.
      fence_async_proxy();
      __syncwarp();
      release(slot_);
      pass_atoms(1);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) scale[half] = squares[half].scale(eps);
  }
  // Norms the 64 values that have come to the slot where they lie, and turns them if they are a head's last. `back`:
  // the rotation of outputs. Each warp takes its heads; products read them all.
  __device__ void norm_queries(const std::uint32_t (&scale)[2], const Rotation& back, bool last) const {
    Queries queries;
    load_queries(queries);
#pragma unroll
    for (int i = 0; i < kAtomProducts; ++i) {
      auto& four = queries[i];
#pragma unroll
      for (int j = 0; j < 4; ++j) four[j] = multiply_pairs(four[j], scale[j % 2]);
      if (last && rotates()) {
#pragma unroll
        for (int unit = 0; unit < 2; ++unit) {
          const Rotation own = rotation_of_pair(back, 4 * (2 * i + unit) + lane_ % 4);
          turn_query(own, four[2 * unit]);
          turn_query(own, four[2 * unit + 1]);
        }
      }
      store_fragments(fragments_of_slot(i), four[0], four[1], four[2], four[3]);
    }
    fence_async_proxy();
    named_sync(kRunGroupBarrier + group_, 128);
  }

  // --- scores ---------------------------------------------------------------------------------------------

  // `window`, `compressed`: where these rows begin. `back`: the rotation of outputs.
  __device__ void score(std::uint32_t window, std::uint32_t compressed, const Rotation& back, Scores& s) {
    std::uint64_t window_keys = Room::keys(window);
    std::uint64_t compressed_keys = Room::keys(compressed);
    const std::uint64_t queries = atom_descriptor(shared_address(shared_.queries), 16);
    std::uint32_t scale[2] = {};
    if constexpr (kNorms) {
      take_turn();
      find_scales(*p_.query_eps, scale);
    }
    // Without a first value they would count as the last token's, to be kept while its outputs need the registers.
#pragma unroll
    for (float& value : s.window) value = 0.0f;
#pragma unroll
    for (float& value : s.compressed) value = 0.0f;
    wgmma_hold(s.window);
    if constexpr (kCompresses) wgmma_hold(s.compressed);
    if constexpr (!kNorms) take_turn();
    int before = 0;  // the slot whose products run
#pragma unroll 1
    for (int atom = 0; atom < kAtoms; ++atom) {
      const std::uint64_t q = queries + slot_ * (kAtomBytes / kUnitBytes);
      barrier_wait(shared_address(&shared_.full[slot_]), phase_);
      if constexpr (kNorms) norm_queries(scale, back, atom == kAtoms - 1);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kAtomProducts; ++i) {
        constexpr int kStepUnits = 16 / kUnitValues;
        Wgmma<kRunWindow>::bf16(s.window, q + kStepUnits * i, window_keys + kStepUnits * i, atom + i > 0);
        if constexpr (kCompresses) {
          Wgmma<kRunCompressedRows>::bf16(s.compressed, q + kStepUnits * i, compressed_keys + kStepUnits * i,
                                          atom + i > 0);
        }
      }
      wgmma_commit();
      window_keys += Room::kAtomUnits;
      compressed_keys += Room::kAtomUnits;
      wgmma_wait<1>();
      if (atom > 0) release(before);
      before = slot_;
      pass_atoms(1);
    }
    give_turn();
    wgmma_wait<0>();
    wgmma_hold(s.window);
    if constexpr (kCompresses) wgmma_hold(s.compressed);
    release(before);
  }

  // Scales `s`; those of rows that the token does not have become -infinity. Raises `largest` to the greatest.
  template <int kCount>
  __device__ void scale(float (&s)[kCount], std::int32_t rows, float (&largest)[2]) const {
    constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
    static_assert(kHeadDim == 512);
#pragma unroll
    for (float& value : s) value = __fmul_rn(value, kScale);
    if (rows < 2 * kCount) {
      rows -= lane_ % 4 * 2;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i / 4 * 8 + i % 2 >= rows) s[i] = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) largest[i % 4 / 2] = fmaxf(largest[i % 4 / 2], s[i]);
  }

  // --- weights --------------------------------------------------------------------------------------------

  // Rounded weights as operands of products, and what outputs are multiplied by.
  __device__ void weigh(const RunToken& token, Scores& s, Weights& weights, float (&factor)[2]) const {
    float window_max[2] = {-INFINITY, -INFINITY};
    float max[2] = {-INFINITY, -INFINITY};
    scale(s.window, token.window, window_max);
    if constexpr (kCompresses) scale(s.compressed, token.compressed, max);
    bool shifted = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      window_max[half] = greatest_of_lanes(window_max[half]);
      max[half] = greatest_of_lanes(max[half]);
      shifted = shifted || needs_shift(window_max[half], max[half]);
    }
    WeightReference reference[2] = {{window_max[0], 0.0f}, {window_max[1], 0.0f}};
    if (kCompresses && __any_sync(0xffffffffu, shifted)) {
      for (int half = 0; half < 2; ++half) reference[half] = weight_reference(window_max[half], max[half]);
      weigh_shifted(reference[0], reference[1], s.window);
      weigh_shifted(reference[0], reference[1], s.compressed);
      weigh<true>(reference, s, weights, factor);
    } else {
      weigh<false>(reference, s, weights, factor);
    }
  }

  __device__ static float greatest_of_lanes(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
  }

  // kWeighed: whether weights are there already, unrounded, in place of scores.
  template <bool kWeighed>
  __device__ void weigh(const WeightReference (&reference)[2], Scores& s, Weights& weights, float (&factor)[2]) const {
    float sum[2][4] = {};  // every fourth step's
#pragma unroll
    for (int step = 0; step < kProducts / kStepProducts; ++step) {
      float own[2] = {0.0f, 0.0f};
#pragma unroll
      for (int i = kStepProducts * step; i < kStepProducts * (step + 1); ++i) {
        float* v = s.of(i);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          if (!kWeighed) v[j] = reference[j % 4 / 2].unshifted_weight(v[j]);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2) own[j % 4 / 2] += v[j] + v[j + 1];
        weights[i] =
            make_uint4(round_pair(v[0], v[1]), round_pair(v[2], v[3]), round_pair(v[4], v[5]), round_pair(v[6], v[7]));
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        own[half] += __shfl_xor_sync(0xffffffffu, own[half], 1);
        own[half] += __shfl_xor_sync(0xffffffffu, own[half], 2);
        sum[half][step % 4] += own[half];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = (sum[half][0] + sum[half][1]) + (sum[half][2] + sum[half][3]);
      factor[half] = reciprocal(all + reference[half].sink_weight(sink_[half]));
    }
  }

  // --- outputs --------------------------------------------------------------------------------------------

  // The first 16 rows of each kind.
  struct Values {
    std::uint64_t window;
    std::uint64_t compressed;
  };
  // A part of the values, summed.
  __device__ static void multiply(const Values& values, int part, Weights& weights, float (&o)[kPartValues / 2]) {
    const std::uint64_t column = std::uint64_t{kPartValues / kAtomValues * Room::kAtomUnits} * part;
    wgmma_hold(weights);
    wgmma_hold(o);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const std::uint64_t rows = i < kWindowProducts ? values.window + 16 * i * Room::kRowUnits
                                                     : values.compressed + 16 * (i - kWindowProducts) * Room::kRowUnits;
      Wgmma<kPartValues>::template bf16_registers<1>(o, weights[i], rows + column, i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_hold(o);
    wgmma_hold(weights);
  }

  // o * factor, rounded, turned if the part is the last, and out.
  template <bool kLast>
  __device__ void write(std::int32_t token, int part, const float (&o)[kPartValues / 2], const float (&factor)[2],
                        const Rotation& rotation) const {
    constexpr int kTurned = (kPartValues - kRopeDim) / 8;  // tiles before those that are turned
    static_assert(kPartValues == kEncodedBlockValues);
    BlockPairs pairs;
#pragma unroll
    for (int tile = 0; tile < kBlockTiles; ++tile) {
      const float* four = &o[4 * tile];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        pairs[half][tile] = round_pair(four[2 * half] * factor[half], four[2 * half + 1] * factor[half]);
      }
      if (kLast && tile >= kTurned && rotates()) {
        rotate(rotation, 4 * (tile - kTurned) + lane_ % 4, pairs[0][tile], pairs[1][tile]);
      }
    }
    if constexpr (kEncodes) {
      const BlockScales scales(pairs);
      store_codes(*p_.encoded, p_.heads, token, head(0), part, pairs, scales, lane_);
      store_scales(*p_.encoded, p_.heads, token, head(0), part, scales, lane_);
    } else {
      write_values(token, part, pairs);
    }
  }
  // Four lanes exchange what they have of 32 values, so that each writes 16 bytes of a head.
  __device__ void write_values(std::int32_t token, int part, const BlockPairs& pairs) const {
    constexpr int kTiles = 4;  // 8 values each
    bf16* to =
        p_.o + (std::int64_t{token} * p_.heads + head(0)) * kHeadDim + part * kPartValues + lane_ % 4 * kUnitValues;
#pragma unroll
    for (int first = 0; first < kBlockTiles; first += kTiles) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t words[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) words[i] = pairs[half][first + i];
        transpose_of_four_lanes(words, lane_);
        *reinterpret_cast<uint4*>(to + half * 8 * kHeadDim + first * 8) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }

  // `rotation` is of the pair that the lane has the number of.
  __device__ static Rotation rotation_of_pair(const Rotation& rotation, int pair) {
    return {__shfl_sync(0xffffffffu, rotation.cosine, pair), __shfl_sync(0xffffffffu, rotation.sine, pair)};
  }
  // Turns pair `pair` of two heads.
  __device__ static void rotate(const Rotation& rotation, int pair, std::uint32_t& one, std::uint32_t& other) {
    const Rotation own = rotation_of_pair(rotation, pair);
    for (std::uint32_t* values : {&one, &other}) {
      float first = low_value(*values);
      float second = high_value(*values);
      rotate_pair(own, first, second);
      *values = round_pair(first, second);
    }
  }

  const AttendParams& p_;
  RunShared<kCompresses>& shared_;
  int first_head_;
  int group_;
  int turn_phase_;
  int warp_ = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);  // known to be uniform
  int lane_ = static_cast<int>(threadIdx.x) % 32;
  int slot_ = 0;  // where the next queries are in the ring, and its phase
  int phase_ = 0;
  float sink_[2];
  float frequency_ = 0.0f;  // the lane's pair's
};

#endif

}  // namespace dsv4rt::cuda
