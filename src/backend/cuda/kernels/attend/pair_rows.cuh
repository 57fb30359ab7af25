// The producers of pair_plan.cuh: a half of packed rows from global memory to BF16 atoms in the slots.
//
// Four threads take a row. Of two tiles their units are under way while a third one is decoded.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/pair_plan.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/early_reads.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

template <int kRank>
class PairProducer {
 public:
  // `thread`: of the producers. Places of the window's rows are there.
  __device__ PairProducer(const AttendParams& params, const TokenPosition& place, std::int32_t window, int thread,
                          PairShared& shared)
      : p_(params),
        slot_(place.slot),
        window_(window),
        count_(window),
        before_step_(place.start - (place.position - window + 1)),
        shared_(shared),
        row_(thread / 4),
        unit_(thread % 4) {}

  // All rows. The first time it begins before the kernels in front have ended. `filled`: fills of the slots before.
  __device__ void run(bool first, int& filled) {
    Loaded even{};
    Loaded odd{};
    // Whether the first tile needs nothing of this step, and is in its slot before the step's kernels have ended.
    const bool stored = first && before_step_ >= kTileRows;
    if (first) {
      load_early(0, even);
      load_early(1, odd);
      if (stored) store(0, 0, even);
      wait_for_predecessors();
      barrier_wait(shared_address(&shared_.placed), 0);
      count_ = shared_.item.rows;
    }
    const int tiles = (count_ + kTileRows - 1) / kTileRows;
    const RowSlot place[3] = {place_of(0), place_of(1), place_of(2)};
    if (!stored) load_rest(0, place[0], first, even);
    if (tiles > 1) load_rest(1, place[1], first, odd);
    if (stored && tiles > 2) load(2, place[2], even);
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += 2) {
      if (tile > 0 || !stored) take(tile, tiles, filled + tile, even);
      if (tile + 1 < tiles) take(tile + 1, tiles, filled + tile + 1, odd);
    }
    filled += tiles;
  }

 private:
  static constexpr bool kHasRope = kRank == 1;
  static constexpr int kCodeAtoms = kHalfAtoms - kRank;  // atoms of the half that are decoded
  struct Loaded {
    uint4 raw[kCodeAtoms];
    uint4 rope[kHasRope ? 2 : 1];
    std::uint32_t scales;  // four of the row's, of this half's groups
  };

  // The thread's row of a tile; the token's last one instead of one that does not exist.
  [[nodiscard]] __device__ std::int32_t row_of(int tile) const {
    return min(tile * kTileRows + row_, count_ - 1);
  }
  // Looked up before other accesses are waiting to be served: a look-up queues behind them.
  [[nodiscard]] __device__ RowSlot place_of(int tile) const {
    const std::int32_t row = row_of(tile);
    return shared_.place[row < window_ ? row : kMappedWindow - window_ + row];
  }
  [[nodiscard]] __device__ RowSource source_of(int tile, RowSlot place) const {
    return row_of(tile) < window_ ? window_source(p_, slot_, place) : compressed_source(p_, place);
  }
  // Whether the row is the window's and was written before the step (early_reads.cuh).
  [[nodiscard]] __device__ bool is_known(int tile) const {
    return tile * kTileRows + row_ < before_step_;
  }
  [[nodiscard]] __device__ const std::byte* units(const RowSource& source) const {
    return source.data + kRank * kHalfAtoms * kAtomValues + unit_ * kUnitBytes;
  }

  [[nodiscard]] __device__ const std::byte* rope(const RowSource& source) const {
    return source.data + Fp8DsMlaRow::kRopeOffset + 2 * unit_ * kUnitBytes;
  }

  __device__ void load_early(int tile, Loaded& loaded) const {
    const RowSource source = source_of(tile, place_of(tile));
    const bool known = is_known(tile);
    load_early_if(known, source.scales + kRank * kHalfAtoms, loaded.scales);
#pragma unroll
    for (int i = 0; i < kCodeAtoms; ++i) load_early_if(known, units(source) + i * kAtomValues, loaded.raw[i]);
    if constexpr (kHasRope) {
#pragma unroll
      for (int i = 0; i < 2; ++i) load_early_if(known, rope(source) + i * kUnitBytes, loaded.rope[i]);
    }
  }
  // What load_early() has left, or all.
  __device__ void load_rest(int tile, RowSlot place, bool behind_early, Loaded& loaded) const {
    if (!behind_early || !is_known(tile)) load(tile, place, loaded);
  }
  __device__ void load(int tile, RowSlot place, Loaded& loaded) const {
    const RowSource source = source_of(tile, place);
    loaded.scales = load_scale_bytes<kHalfAtoms>(source.scales + kRank * kHalfAtoms);
#pragma unroll
    for (int i = 0; i < kCodeAtoms; ++i) loaded.raw[i] = load_passing_unit(units(source) + i * kAtomValues);
    if constexpr (kHasRope) {
#pragma unroll
      for (int i = 0; i < 2; ++i) loaded.rope[i] = load_passing_unit(rope(source) + i * kUnitBytes);
    }
  }

  // Stores a tile, the `fill`-th of all, and starts to load the one after the next.
  __device__ void take(int tile, int tiles, int fill, Loaded& loaded) {
    const RowSlot next = place_of(tile + 2);
    store(tile, fill, loaded);
    if (tile + 2 < tiles) load(tile + 2, next, loaded);
  }
  __device__ void store(int tile, int fill, const Loaded& loaded) {
    const int place = fill % kPairSlots;
    std::byte* slot = shared_.slot[place];
    const std::uint32_t full = shared_address(&shared_.full[place]);
    if (fill >= kPairSlots) barrier_wait(shared_address(&shared_.empty[place]), (fill / kPairSlots - 1) & 1);
    const bool exists = tile * kTileRows + row_ < count_;
    const std::uint32_t scales = exists ? loaded.scales : 0;
    const std::uint32_t present = exists ? 0xffffffffu : 0;
    std::uint32_t greatest = 0;
#pragma unroll
    for (int i = 0; i < kCodeAtoms; ++i) {
      const std::uint32_t scale = scales >> (8 * i) & 0xffu;
      greatest = max(greatest, scale);
      uint4 values[2];
      decode_e4m3_unit_by_bits(loaded.raw[i], e4m3_factor(scale) & present, values);
      store_atom(slot, i, row_, unit_, values[0], values[1]);
    }
    if constexpr (kHasRope) {
      store_atom(slot, kCodeAtoms, row_, unit_, exists ? loaded.rope[0] : uint4{}, exists ? loaded.rope[1] : uint4{});
    }
    if (greatest > kGreatestFactor) {
#pragma unroll 1
      for (int i = 0; i < kCodeAtoms; ++i) {
        const std::uint32_t scale = scales >> (8 * i) & 0xffu;
        if (scale > kGreatestFactor) correct_atom(slot, i, row_, unit_, scale);
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full);
  }

  const AttendParams& p_;
  std::int32_t slot_;
  std::int32_t window_;
  std::int32_t count_;        // the token's rows, once they are known
  std::int32_t before_step_;  // the window's rows that earlier steps have written, fewer than all
  PairShared& shared_;
  int row_;   // the thread's row of a tile
  int unit_;  // the thread's unit of an atom's 64 codes
};

}  // namespace dsv4rt::cuda
