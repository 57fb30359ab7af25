// The consumers of warpgroup_plan.cuh: scores, weights and outputs of 64 heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/warpgroup_plan.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kConsumersBarrier = 1;
inline constexpr int kOutputBarrier = 2;  // consumers and the warp that computes the rotations

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// exp(x) for x <= 0, to 2^-21 relative for x > -16; results below 2^-126 are zero.
__device__ inline float exp_fast(float x) {
  constexpr float kLog2E = 0x1.715476p+0f;
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(__fmul_rn(x, kLog2E)));
  return power;
}

// 1 / x to 2^-23 relative, for x >= 1 or NaN.
__device__ inline float reciprocal(float x) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
  return inverse;
}

template <int kBlocks, bool kTurns>
class HeadConsumer {
 public:
  using Shared = WarpgroupShared<kBlocks, kTurns>;
  static constexpr int kWarpgroupTiles = warpgroup_tiles<kBlocks>();
  static constexpr int kParked = parked_tiles<kBlocks, kTurns>();
  static constexpr int kProducts = kTileRows / 16;  // matrix products over a tile's values, 16 rows each
  static constexpr int kColumns =
      KvSplit<kBlocks, kTurns>::kSliceValues / 2;        // values of the output that a warpgroup sums
  static constexpr int kParts = kColumns > 128 ? 2 : 1;  // products that these columns take
  static constexpr int kPartTiles = kColumns / kParts / 8;
  static constexpr int kPartBytes = kColumns / kParts / kAtomValues * kAtomBytes;
  static constexpr int kOutputStride = KvSplit<kBlocks, kTurns>::kSliceValues * 2 + 16;  // bytes: no bank conflicts
  // Whether a piece has several tiles: then the products of one run while the next one's are issued.
  static constexpr bool kOverlaps = KvSplit<kBlocks, kTurns>::kPieceTiles > 1;
  using TileScores = float[32];
  using Scores = TileScores[kWarpgroupTiles];
  using ParkedScores = float4[kParked > 0 ? kParked : 1][8];

  // `token`: of shared.work and what belongs to it.
  __device__ HeadConsumer(const AttendParams& params, int token, Shared& shared)
      : p_(params), token_(token), shared_(shared) {}

  // With one block, next(item) is called when q and the weights of the item are not needed any more.
  template <class Next>
  __device__ void run(const Next& next) {
    barrier_wait(shared_address(&shared_.q_full), shared_.work[token_].parity);
    {
      Scores s;
      ParkedScores parked;
      score(s, parked);
      agree_on_max();
      weigh(s, parked);
    }
    publish_weights();
    sum_values(next);
  }

 private:
  // --- scores of the split -------------------------------------------------------------------------------

  // Tile of this warpgroup's `j`-th score product; negative: none.
  [[nodiscard]] __device__ int tile_of(const KvSplit<kBlocks, kTurns>& split, int j) const {
    return split.tiles() - 1 - (2 * j + group_);
  }
  [[nodiscard]] __device__ KvSplit<kBlocks, kTurns> split() const {
    return {shared_.work[token_], static_cast<int>(blockIdx.x) % kBlocks};
  }

  // Scores of the split's tiles, the last ones in `parked`. Every product is made in s's last tile and moved away.
  __device__ void score(Scores& s, ParkedScores& parked) {
    TileScores& product = s[kWarpgroupTiles - 1];
    // Otherwise they would count as values of the previous token, to be kept while its outputs need the registers.
    if constexpr (kTurns) {
#pragma unroll
      for (auto& tile : s) {
#pragma unroll
        for (float& value : tile) value = 0.0f;
      }
    }
    if constexpr (kParked > 0) {
#pragma unroll 1
      for (int j = 0; j < kParked; ++j) {
        TileScores scores;
        if (!score_tile(j, product, scores)) break;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          parked[j][i] = make_float4(scores[4 * i], scores[4 * i + 1], scores[4 * i + 2], scores[4 * i + 3]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kWarpgroupTiles; ++j) {
      if (!score_tile(kParked + j, product, s[j])) break;
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
    barrier_wait(shared_address(&shared_.full[group_]), (split.filled_before(group_) + j) & 1);
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
    if (tile >= split.resident()) release(shared_.empty[group_], 2);
    constexpr float kScale = 0x1.6a09e6p-5f;  // 512^-0.5
    static_assert(kHeadDim == 512);
    const int rows = split.end() - split.begin() - tile * kTileRows - lane_ % 4 * 2;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      scores[i] = __fmul_rn(product[i], kScale);
      if (j == 0 && i / 4 * 8 + i % 2 >= rows) scores[i] = -INFINITY;
      max_[i % 4 / 2] = fmaxf(max_[i % 4 / 2], scores[i]);
    }
    return true;
  }

  // This warp arrives: `arrivals` of the eight that free a slot.
  __device__ void release(std::uint64_t& empty, int arrivals) {
    if (lane_ == 0) barrier_arrive_several(shared_address(&empty), arrivals);
  }

  // --- the token's maximum -------------------------------------------------------------------------------

  // Turns the thread's maxima in max_ into the token's.
  __device__ void agree_on_max() {
    const int rank = this->split().rank;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = max_[half];
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
      if (lane_ % 4 == 0) shared_.row_max[group_][head(half)] = largest;
    }
    named_sync(kConsumersBarrier, kConsumers);
    if constexpr (kBlocks > 1) {
      constexpr int kHeadsEach = 4;
      if (thread_ < kBlocks * kTileHeads / kHeadsEach) {
        const int block = thread_ % kBlocks;
        const int h = thread_ / kBlocks * kHeadsEach;
        float largest[kHeadsEach];
#pragma unroll
        for (int i = 0; i < kHeadsEach; ++i) {
          largest[i] = fmaxf(shared_.row_max[0][h + i], shared_.row_max[1][h + i]);
        }
        store_cluster(block_address(shared_address(&shared_.split_max[rank][h]), block),
                      make_float4(largest[0], largest[1], largest[2], largest[3]),
                      block_address(shared_address(&shared_.max_ready), block));
      }
      barrier_wait_cluster(shared_address(&shared_.max_ready), 0);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kBlocks > 1) {
        max_[half] = -INFINITY;
        for (int b = 0; b < kBlocks; ++b) max_[half] = fmaxf(max_[half], shared_.split_max[b][head(half)]);
      } else {
        max_[half] = fmaxf(shared_.row_max[0][head(half)], shared_.row_max[1][head(half)]);
      }
    }
  }

  // --- weights -------------------------------------------------------------------------------------------

  // p = exp(s - max): sums of steps unrounded, weights rounded and in the layout of a register operand: 16
  // bytes for each (16 rows, thread). In place of the queries.
  __device__ void weigh(Scores& s, const ParkedScores& parked) {
#pragma unroll
    for (int j = 0; j < kWarpgroupTiles; ++j) {
      if (tile_of(split(), kParked + j) < 0) break;
      weigh_tile(kParked + j, s[j]);
    }
    if constexpr (kParked > 0) {
#pragma unroll 1
      for (int j = 0; j < kParked; ++j) {
        if (tile_of(split(), j) < 0) break;
        TileScores scores;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float4 four = parked[j][i];
          scores[4 * i] = four.x, scores[4 * i + 1] = four.y, scores[4 * i + 2] = four.z, scores[4 * i + 3] = four.w;
        }
        weigh_tile(j, scores);
      }
    }
  }

  __device__ void weigh_tile(int j, TileScores& s) {
    const auto split = this->split();
    const int tile = tile_of(split, j);
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = exp_fast(s[i] - max_[i % 4 / 2]);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 4 * step; i < 4 * step + 4; ++i) sum += s[4 * i + 2 * half] + s[4 * i + 2 * half + 1];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const int at = 2 * tile + step;
        if (lane_ % 4 == 0 && at < split.own_steps()) shared_.step_sum[split.own_step() + at][head(half)] = sum;
      }
    }
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const float* v = &s[8 * i];
      const int at = tile * kProducts + i;
      if (at < 2 * split.own_steps()) {  // beyond lie the next block's
        *reinterpret_cast<uint4*>(weights(2 * split.own_step() + at)) =
            make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]), pack_bf16(v[6], v[7]));
      }
    }
  }

  // This thread's unit of a step of 16 rows.
  [[nodiscard]] __device__ std::byte* weights(int step) {
    return shared_.q + warp_ % 4 * Shared::kWarpWeightBytes + step * kWarpProductBytes + lane_ * kUnitBytes;
  }

  __device__ void publish_weights() {
    const KvSplit<kBlocks, kTurns> split = this->split();
    if (kBlocks > 1 && split.gathers()) {
      fence_async_proxy();
      named_sync(kConsumersBarrier, kConsumers);
      constexpr int kSumBytes = kTileHeads * 4;
      // Those of the heads that exist, 16 for a warp, whose steps lie side by side.
      const int warps = (shared_.work[token_].heads + 15) / 16;
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
    } else if (kBlocks > 1) {
      __syncwarp();
      if (lane_ < kBlocks) barrier_arrive_cluster(block_address(shared_address(&shared_.weights_ready), lane_));
      barrier_wait_cluster(shared_address(&shared_.weights_ready), 0);
    } else {
      named_sync(kConsumersBarrier, kConsumers);
    }
  }

  // --- outputs -------------------------------------------------------------------------------------------

  // Weights of the token's rows [64 * tile, ..) against this warpgroup's columns; tiles in their order.
  __device__ void load_weights(const KvSplit<kBlocks, kTurns>& split, int tile, uint4 (&a)[kProducts]) {
    constexpr int kChunkTiles = Shared::kChunkSteps / 2;
    if (kBlocks > 1 && tile % kChunkTiles == 0 && 2 * tile < split.steps && split.gathers()) {
      barrier_wait_cluster(shared_address(&shared_.weights_here[tile / kChunkTiles]), 0);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * tile + half;
      if (step >= split.steps) {
        a[2 * half] = a[2 * half + 1] = uint4{};
      } else if (kBlocks > 1 && !split.gathers()) {
        const int owner = split.owner(step);
        const std::uint32_t from = block_address(shared_address(weights(2 * (step - split.first_step(owner)))), owner);
        a[2 * half] = load_cluster_unit(from);
        a[2 * half + 1] = load_cluster_unit(from + kWarpProductBytes);
      } else {
        a[2 * half] = *reinterpret_cast<const uint4*>(weights(2 * step));
        a[2 * half + 1] = *reinterpret_cast<const uint4*>(weights(2 * step + 1));
      }
    }
  }

  // Sums of p over the token's rows: four chains of steps, by step % 4, and later their tree. This adds the thread's
  // step of the `i`-th four.
  __device__ void add_step_sums(const KvSplit<kBlocks, kTurns>& split, int i, float (&sum)[2]) {
    const int step = 4 * i + lane_ % 4;
    if (step >= split.steps) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (kBlocks > 1 && !split.gathers()) {
        const int owner = split.owner(step);
        sum[half] += load_cluster(
            block_address(shared_address(&shared_.step_sum[step - split.first_step(owner)][head(half)]), owner));
      } else {
        sum[half] += shared_.step_sum[step][head(half)];
      }
    }
  }

  // Registers that products read count as free as soon as those are issued: keeps weights where they are until then.
  __device__ static void hold_weights(uint4 (&a)[kProducts]) {
#pragma unroll
    for (uint4& unit : a) asm volatile("" : "+r"(unit.x), "+r"(unit.y), "+r"(unit.z), "+r"(unit.w)::"memory");
  }

  // A block that has a token alone: each half of slot 1 is for a warpgroup, with its columns.
  static constexpr bool kAlone = kBlocks == 1 && !kTurns;

  // Where the values of a tile lie: the slot, or the half of slot 1.
  [[nodiscard]] __device__ int value_slot(const KvSplit<kBlocks, kTurns>& split, int tile) const {
    const int piece = tile / KvSplit<kBlocks, kTurns>::kPieceTiles;
    if constexpr (kAlone) return group_;
    return kTurns ? split.slot_of(piece) : piece % 2;
  }
  // And the number of its fill.
  [[nodiscard]] __device__ static int value_fill(const KvSplit<kBlocks, kTurns>& split, int tile) {
    const int piece = tile / KvSplit<kBlocks, kTurns>::kPieceTiles;
    if constexpr (kAlone) return tile;
    return kTurns ? split.fill_of(piece) : piece / 2;
  }

  // Starts the products of a tile's values with the weights in `a`, once they are there.
  __device__ void multiply_tile(const KvSplit<kBlocks, kTurns>& split, int tile, uint4 (&a)[kProducts],
                                float (&o)[kParts][kColumns / kParts / 2]) {
    constexpr int kPieceTiles = KvSplit<kBlocks, kTurns>::kPieceTiles;
    constexpr int kGroups = kAtoms / kBlocks;
    // The warpgroup's columns start in an atom of their own, or in the middle of the only one.
    constexpr int kColumnBytes = kColumns >= kAtomValues ? kColumns / kAtomValues * kAtomBytes : kColumns * 2;
    constexpr int kGroupBytes = kAlone ? 0 : kColumnBytes;
    const int slot = value_slot(split, tile);
    if (tile % kPieceTiles == 0) {
      barrier_wait(shared_address(kTurns ? &shared_.full[slot] : &shared_.piece_full[slot]),
                   value_fill(split, tile) & 1);
      fence_async_proxy();
    }
    const std::byte* atoms =
        kTurns ? shared_.slot[slot] : shared_.slot[1] + slot * KvSplit<kBlocks, kTurns>::kPieceBytes;
    const std::uint64_t v = atom_descriptor(
        shared_address(atoms) + tile % kPieceTiles * kGroups * kAtomBytes + group_ * kGroupBytes, kAtomBytes);
    hold_weights(a);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const std::uint32_t weights[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
        Wgmma<kColumns / kParts>::template bf16_registers<1>(
            o[part], weights, v + (i * 16 * kAtomRowBytes + part * kPartBytes) / 16, true);
      }
    }
    wgmma_commit();
  }
  // While the products of `tile` run: those of the tile before it are done, and its registers `a` take the next one's
  // weights. The last one's of a piece are waited for: producers wait for its place.
  __device__ void finish_tile_before(const KvSplit<kBlocks, kTurns>& split, int tile, uint4 (&a)[kProducts]) {
    wgmma_wait<1>();
    hold_weights(a);
    load_weights(split, tile + 1, a);
    if (tile % KvSplit<kBlocks, kTurns>::kPieceTiles == KvSplit<kBlocks, kTurns>::kPieceTiles - 1) {
      wgmma_wait<0>();
      release_values(split, tile);
    }
  }
  // The products of a piece's last tile are done.
  __device__ void release_values(const KvSplit<kBlocks, kTurns>& split, int tile) {
    const int slot = value_slot(split, tile);
    release(kTurns ? shared_.empty[slot] : shared_.piece_empty[slot], kAlone ? 2 : 1);
  }

  template <class Next>
  __device__ void sum_values(const Next& next) {
    const KvSplit<kBlocks, kTurns> split = this->split();
    float sink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = shared_.work[token_].first_head + head(half);
      sink[half] = h < p_.heads ? __ldg(p_.sink + h) : 0.0f;
    }
    uint4 even[kProducts];  // weights of the tile whose products run, and of the next one
    uint4 odd[kProducts];
    load_weights(split, 0, even);
    float factor[2];
    float o[kParts][kColumns / kParts / 2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (float& value : o[part]) value = 0.0f;
    }
    float sum[2] = {0.0f, 0.0f};
    const auto scale_sums = [&] {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        factor[half] = reciprocal(sum[half] + expf(sink[half] - max_[half]));
      }
    };
    const int tiles = (split.count + kTileRows - 1) / kTileRows;
    if constexpr (kOverlaps) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) wgmma_hold(o[part]);
#pragma unroll 1
      for (int tile = 0; tile < tiles; tile += 2) {
        multiply_tile(split, tile, even, o);
        add_step_sums(split, tile / 2, sum);
        finish_tile_before(split, tile, odd);
        if (tile + 1 < tiles) {
          multiply_tile(split, tile + 1, odd, o);
          finish_tile_before(split, tile + 1, even);
        }
      }
      scale_sums();
      wgmma_wait<0>();
      hold_weights(even);
      hold_weights(odd);
    } else {
#pragma unroll 1
      for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
        for (int i = 0; i < kProducts; ++i) odd[i] = even[i];
        hold_weights(odd);
        load_weights(split, tile + 1, even);
#pragma unroll
        for (int part = 0; part < kParts; ++part) wgmma_hold(o[part]);
        multiply_tile(split, tile, odd, o);
        if constexpr (kBlocks > 1) {
          if (tile % 2 == 0) add_step_sums(split, tile / 2, sum);
        } else if (tile == 0) {  // there are no registers to spare later on
#pragma unroll 4
          for (int i = 0; i < (tiles + 1) / 2; ++i) add_step_sums(split, i, sum);
          scale_sums();
        }
        wgmma_wait<0>();
        release_values(split, tile);
      }
      if constexpr (kBlocks > 1) scale_sums();
    }
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma_hold(o[part]);
    if constexpr (kBlocks == 1) {
      fence_async_proxy();  // the weights have been read; the copy engine writes queries in their place
      if constexpr (kTurns) {
        named_sync(kConsumersBarrier, kConsumers);
      } else {
        named_sync(kOutputBarrier, kConsumers + 32);
      }
      next(shared_.work[token_]);
      write_rows(o, factor);
    } else {
      write_slice(o, factor);
    }
  }

  // o * factor, rounded, turned, and out through this warp's part of more_weights, 16 heads x 64 values at a time.
  __device__ void write_rows(const float (&o)[kParts][kColumns / kParts / 2], const float (&factor)[2]) {
    const WorkItem work = shared_.work[token_];
    const bool rotates = p_.output_rope.inverse_frequency != nullptr;
    constexpr int kStagedBytes = 16 * kAtomRowBytes;
    static_assert(sizeof(shared_.more_weights) >= kConsumers / 32 * kStagedBytes || kBlocks > 1);
    std::byte* staged = shared_.more_weights + warp_ * kStagedBytes;
#pragma unroll
    for (int atom = 0; atom < kColumns / kAtomValues; ++atom) {
      const bool turned = rotates && group_ * kColumns + atom * kAtomValues == kNopeDim;
#pragma unroll
      for (int unit = 0; unit < kAtomValues / kUnitValues; ++unit) {
        const int i = atom * kAtomValues / kUnitValues + unit;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float* pair = &o[i / kPartTiles][i % kPartTiles * 4 + 2 * half];
          std::uint32_t values = pack_bf16(pair[0] * factor[half], pair[1] * factor[half]);
          if (turned) {
            float even = low_value(values);
            float odd = high_value(values);
            rotate_pair(shared_.rotation[token_][unit * 4 + lane_ % 4], even, odd);
            values = pack_bf16(even, odd);
          }
          *reinterpret_cast<std::uint32_t*>(staged + atom_offset(half * 8 + lane_ / 4, unit) + lane_ % 4 * 4) = values;
        }
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = i * 4 + lane_ / 8;
        const int h = work.first_head + warp_ % 4 * 16 + row;
        if (h < p_.heads) {
          bf16* to =
              p_.o + (std::int64_t{work.token} * p_.heads + h) * kHeadDim + group_ * kColumns + atom * kAtomValues;
          reinterpret_cast<uint4*>(to)[lane_ % 8] =
              *reinterpret_cast<const uint4*>(staged + atom_offset(row, lane_ % 8));
        }
      }
      __syncwarp();
    }
  }

  // o * factor, rounded, turned, and out through slot 1.
  __device__ void write_slice(const float (&o)[kParts][kColumns / kParts / 2], const float (&factor)[2]) {
    const KvSplit<kBlocks, kTurns> split = this->split();
    const WorkItem& work = shared_.work[token_];
    named_sync(kOutputBarrier, kConsumers + 32);
    std::byte* out = shared_.slot[1];  // slot 0 may hold weights that are still on their way to others
    std::byte* own = out + head(0) * kOutputStride + (group_ * kColumns + lane_ % 4 * 2) * 2;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = &o[i / kPartTiles][i % kPartTiles * 4 + 2 * half];
        *reinterpret_cast<std::uint32_t*>(own + half * 8 * kOutputStride + i * 16) =
            pack_bf16(pair[0] * factor[half], pair[1] * factor[half]);
      }
    }
    if (split.rank == kBlocks - 1 && p_.output_rope.inverse_frequency != nullptr) {
      named_sync(kConsumersBarrier, kConsumers);
      rotate(out + (KvSplit<kBlocks, kTurns>::kSliceValues - kRopeDim) * 2);
    }
    fence_async_proxy();
    named_sync(kConsumersBarrier, kConsumers);
    if (thread_ < work.heads) {
      bulk_store(p_.o + (std::int64_t{work.token} * p_.heads + work.first_head + thread_) * kHeadDim +
                     split.rank * KvSplit<kBlocks, kTurns>::kSliceValues,
                 shared_address(out) + thread_ * kOutputStride, KvSplit<kBlocks, kTurns>::kSliceValues * 2);
      bulk_store_wait();
    }
  }

  // The rotated values of every head, in place.
  __device__ void rotate(std::byte* first) {
    const int pair = thread_ % kRotatedPairs;
    const Rotation rotation = shared_.rotation[token_][pair];
#pragma unroll
    for (int h = thread_ / kRotatedPairs; h < kTileHeads; h += kConsumers / kRotatedPairs) {
      auto* at = reinterpret_cast<std::uint32_t*>(first + h * kOutputStride) + pair;
      float even = __uint_as_float(*at << 16);
      float odd = __uint_as_float(*at & 0xffff0000u);
      rotate_pair(rotation, even, odd);
      *at = pack_bf16(even, odd);
    }
  }

  // The head that this thread's accumulators in the half given belong to.
  [[nodiscard]] __device__ int head(int half) const {
    return warp_ % 4 * 16 + half * 8 + lane_ / 4;
  }

  const AttendParams& p_;
  int token_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x);
  int warp_ = __shfl_sync(0xffffffffu, thread_ / 32, 0);  // known to be uniform
  int lane_ = thread_ % 32;
  int group_ = warp_ / 4;
  float max_[2] = {-INFINITY, -INFINITY};
};

#endif

}  // namespace dsv4rt::cuda
