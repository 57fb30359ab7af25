// The consumers of warpgroup_plan.cuh, second half: outputs of 64 heads.
#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/softmax_math.cuh"
#include "backend/cuda/kernels/attend/warpgroup_scores.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kOutputBarrier = 2;  // consumers and the warp that computes the rotations

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kBlocks>
class HeadConsumer : private ScoreConsumer<kBlocks> {
  using Base = ScoreConsumer<kBlocks>;
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
  using Base::warp_;
  using Base::weights;

 public:
  using Shared = typename Base::Shared;
  // Values of the output that a warpgroup sums.
  static constexpr int kColumns = KvSplit<kBlocks>::kSliceValues / 2;
  static constexpr int kOutputStride = KvSplit<kBlocks>::kSliceValues * 2 + 16;  // bytes: no bank conflicts
  static_assert(KvSplit<kBlocks>::kPieceTiles > 1, "the products of a tile run while the next one's are issued");

  using Base::Base;

  __device__ void run() {
    Base::publish_scores();
    sum_values();
  }

 private:
  struct Sums {
    float values[kColumns / 2];
  };

  // Weights of the token's rows [64 * tile, ..) against this warpgroup's columns; tiles in their order.
  __device__ void load_weights(const KvSplit<kBlocks>& split, int tile, uint4 (&a)[kProducts]) {
    constexpr int kChunkTiles = Shared::kChunkSteps / 2;
    if (tile % kChunkTiles == 0 && 2 * tile < split.steps && split.gathers()) {
      barrier_wait_cluster(shared_address(&shared_.weights_here[tile / kChunkTiles]), 0);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * tile + half;
      if (step >= split.steps) {
        a[2 * half] = a[2 * half + 1] = uint4{};
      } else if (!split.gathers()) {
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
  __device__ void add_step_sums(const KvSplit<kBlocks>& split, int i, float (&sum)[2]) {
    const int step = 4 * i + lane_ % 4;
    if (step >= split.steps) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!split.gathers()) {
        const int owner = split.owner(step);
        sum[half] += load_cluster(
            block_address(shared_address(&shared_.step_sum[step - split.first_step(owner)][head(half)]), owner));
      } else {
        sum[half] += shared_.step_sum[step][head(half)];
      }
    }
  }

  // Starts the products of a tile's values with the weights in `a`, once they are there.
  __device__ void multiply_tile(int tile, uint4 (&a)[kProducts], Sums& o) {
    constexpr int kPieceTiles = KvSplit<kBlocks>::kPieceTiles;
    constexpr int kGroups = kAtoms / kBlocks;
    // The warpgroup's columns start in an atom of their own, or in the middle of the only one.
    constexpr int kGroupBytes = kColumns >= kAtomValues ? kColumns / kAtomValues * kAtomBytes : kColumns * 2;
    const int piece = tile / kPieceTiles;
    if (tile % kPieceTiles == 0) {
      barrier_wait(shared_address(&shared_.piece_full[piece % 2]), piece / 2 & 1);
      fence_async_proxy();
    }
    const std::byte* atoms = shared_.slot[1] + piece % 2 * KvSplit<kBlocks>::kPieceBytes;
    const std::uint64_t v = atom_descriptor(
        shared_address(atoms) + tile % kPieceTiles * kGroups * kAtomBytes + group_ * kGroupBytes, kAtomBytes);
    wgmma_hold(a);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      Wgmma<kColumns>::template bf16_registers<1>(o.values, a[i], v + i * 16 * kAtomRowBytes / 16, true);
    }
    wgmma_commit();
  }
  // While the products of `tile` run: those of the tile before it are done, and its registers `a` take the next one's
  // weights. The last one's of a piece are waited for: producers wait for its place.
  __device__ void finish_tile_before(const KvSplit<kBlocks>& split, int tile, uint4 (&a)[kProducts]) {
    wgmma_wait<1>();
    wgmma_hold(a);
    load_weights(split, tile + 1, a);
    if (tile % KvSplit<kBlocks>::kPieceTiles == KvSplit<kBlocks>::kPieceTiles - 1) {
      wgmma_wait<0>();
      release_values(tile);
    }
  }
  // The products of a piece's last tile are done.
  __device__ void release_values(int tile) {
    release(shared_.piece_empty[tile / KvSplit<kBlocks>::kPieceTiles % 2], 1);
  }

  __device__ void sum_values() {
    const KvSplit<kBlocks> split = Base::split();
    float sink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int h = shared_.work.first_head + head(half);
      sink[half] = h < p_.heads ? __ldg(p_.sink + h) : 0.0f;
    }
    uint4 even[kProducts];  // weights of the tile whose products run, and of the next one
    uint4 odd[kProducts];
    load_weights(split, 0, even);
    Sums o;
#pragma unroll
    for (float& value : o.values) value = 0.0f;
    float sum[2] = {0.0f, 0.0f};
    float factor[2];
    const int tiles = (split.count + kTileRows - 1) / kTileRows;
    wgmma_hold(o.values);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += 2) {
      multiply_tile(tile, even, o);
      add_step_sums(split, tile / 2, sum);
      finish_tile_before(split, tile, odd);
      if (tile + 1 < tiles) {
        multiply_tile(tile + 1, odd, o);
        finish_tile_before(split, tile + 1, even);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
      sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
      factor[half] = reciprocal(sum[half] + reference_[half].sink_weight(sink[half]));
    }
    wgmma_wait<0>();
    wgmma_hold(even);
    wgmma_hold(odd);
    wgmma_hold(o.values);
    write_slice(o, factor);
  }

  // o * factor, rounded, turned, and out through slot 1.
  __device__ void write_slice(const Sums& o, const float (&factor)[2]) {
    const KvSplit<kBlocks> split = Base::split();
    const WorkItem& work = shared_.work;
    named_sync(kOutputBarrier, kConsumers + 32);
    std::byte* out = shared_.slot[1];  // slot 0 may hold weights that are still on their way to others
    std::byte* own = out + head(0) * kOutputStride + (group_ * kColumns + lane_ % 4 * 2) * 2;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* pair = &o.values[4 * i + 2 * half];
        *reinterpret_cast<std::uint32_t*>(own + half * 8 * kOutputStride + i * 16) =
            round_pair(pair[0] * factor[half], pair[1] * factor[half]);
      }
    }
    if (split.rank == kBlocks - 1 && p_.output_rope.inverse_frequency != nullptr) {
      named_sync(kConsumersBarrier, kConsumers);
      rotate(out + (KvSplit<kBlocks>::kSliceValues - kRopeDim) * 2);
    }
    fence_async_proxy();
    named_sync(kConsumersBarrier, kConsumers);
    if (thread_ < work.heads) {
      bulk_store(p_.o + (std::int64_t{work.token} * p_.heads + work.first_head + thread_) * kHeadDim +
                     split.rank * KvSplit<kBlocks>::kSliceValues,
                 shared_address(out) + thread_ * kOutputStride, KvSplit<kBlocks>::kSliceValues * 2);
      bulk_store_wait();
    }
  }

  // The rotated values of every head, in place.
  __device__ void rotate(std::byte* first) {
    const int pair = thread_ % kRotatedPairs;
    const Rotation rotation = shared_.rotation[pair];
#pragma unroll
    for (int h = thread_ / kRotatedPairs; h < kTileHeads; h += kConsumers / kRotatedPairs) {
      auto* at = reinterpret_cast<std::uint32_t*>(first + h * kOutputStride) + pair;
      float even = __uint_as_float(*at << 16);
      float odd = __uint_as_float(*at & 0xffff0000u);
      rotate_pair(rotation, even, odd);
      *at = round_pair(even, odd);
    }
  }
};

#endif

}  // namespace dsv4rt::cuda
