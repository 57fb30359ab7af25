// The consumers of warpgroup_plan.cuh, second half: outputs of 64 heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/warpgroup_scores.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kOutputBarrier = 2;  // consumers and the warp that computes the rotations

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kBlocks, bool kTurns>
class HeadConsumer : private ScoreConsumer<kBlocks, kTurns> {
  using Base = ScoreConsumer<kBlocks, kTurns>;
  using Base::group_;
  using Base::head;
  using Base::kProducts;
  using Base::lane_;
  using Base::p_;
  using Base::reference_;
  using Base::release;
  using Base::shared_;
  using Base::split;
  using Base::thread_;
  using Base::token_;
  using Base::warp_;
  using Base::weights;

 public:
  using Shared = typename Base::Shared;
  // Values of the output that a warpgroup sums.
  static constexpr int kColumns = KvSplit<kBlocks, kTurns>::kSliceValues / 2;
  static constexpr int kParts = kColumns > 128 ? 2 : 1;  // products that these columns take
  static constexpr int kPartTiles = kColumns / kParts / 8;
  static constexpr int kPartBytes = kColumns / kParts / kAtomValues * kAtomBytes;
  static constexpr int kOutputStride = KvSplit<kBlocks, kTurns>::kSliceValues * 2 + 16;  // bytes: no bank conflicts
  // Whether a piece has several tiles: then the products of one run while the next one's are issued.
  static constexpr bool kOverlaps = KvSplit<kBlocks, kTurns>::kPieceTiles > 1;

  using Base::Base;

  // Where tokens are taken in turn, next(begin) is called when q and the weights of the item are not needed any more;
  // producers have started to copy the next queries to the atoms before `begin`.
  template <class Next>
  __device__ void run(const Next& next) {
    Base::publish_scores();
    sum_values(next);
  }

 private:
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
    const KvSplit<kBlocks, kTurns> split = Base::split();
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
        factor[half] = reciprocal(sum[half] + reference_[half].sink_weight(sink[half]));
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
      next(split.query_room(tiles - 1));
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
    const KvSplit<kBlocks, kTurns> split = Base::split();
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
};

#endif

}  // namespace dsv4rt::cuda
