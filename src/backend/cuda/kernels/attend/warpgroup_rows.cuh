// The producers of warpgroup_plan.cuh: packed rows from global memory to BF16 atoms in the slots.
//
// While a thread decodes its units of a tile's row, their registers take those of the next tile. Rotated values are
// copied to their place, behind the same barrier. Consumers make the atoms visible to matrix instructions.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/warpgroup_plan.cuh"
#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/early_reads.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "layout/fp8_ds_mla.h"

namespace dsv4rt::cuda {

inline constexpr int kProducersBarrier = 3;

template <int kBlocks>
class RowProducer {
 public:
  using Shared = WarpgroupShared<kBlocks>;

  __device__ RowProducer(const AttendParams& params, const TokenRows& rows, const KvSplit<kBlocks>& split,
                         Shared& shared)
      : p_(params),
        slot_(rows.place.slot),
        start_(rows.place.start),
        window_(rows.window),
        split_(split),
        shared_(shared) {}

  // Begins before the kernels in front have ended.
  __device__ void run() {
    run_tiles();
    run_slices(split_.pieces());
  }

 private:
  // Rows [begin, end) of the token that exist, at least one.
  struct Rows {
    std::int32_t begin;
    std::int32_t end;
  };

  // Before the `fill`-th filling.
  __device__ static void wait_empty(std::uint64_t& empty, int fill) {
    if (fill > 0) barrier_wait(shared_address(&empty), (fill - 1) & 1);
  }
  __device__ void announce(std::uint64_t& full) {
    __syncwarp();
    if (thread_ % 32 == 0) barrier_arrive(shared_address(&full));
  }

  // Where row `row` of the token lies; of rows that do not exist, the last one that does. Looked up before other
  // accesses are waiting to be served: a look-up queues behind them.
  [[nodiscard]] __device__ RowSlot place_of(const Rows& rows, std::int32_t row) const {
    row = min(row, rows.end - 1);
    return shared_.place[row < window_ ? row : kMappedWindow - window_ + row];
  }
  [[nodiscard]] __device__ RowSource source_of(const Rows& rows, std::int32_t row, RowSlot place) const {
    return min(row, rows.end - 1) < window_ ? window_source(p_, slot_, place) : compressed_source(p_, place);
  }

  // Whether row `row` of the token, at `place`, was complete before the step (early_reads.cuh). Of selected rows
  // nothing is known before the kernel in front has ended.
  [[nodiscard]] __device__ bool is_known(const Rows& rows, std::int32_t row, RowSlot place) const {
    row = min(row, rows.end - 1);
    if (p_.topk_indices != nullptr) return false;
    return row < window_ ? place < kStagedRow : row - window_ < blocks_before_step(start_, p_.ratio);
  }

  // --- tiles: all warps fill one slot after the other, four threads a row ----------------------------------

  // The `fill`-th tile is that many before the split's last one. One more starts on its way to the level-2 cache before
  // it is loaded.
  [[nodiscard]] __device__ Rows tile_rows(int fill) const {
    return {split_.begin() + (split_.tiles() - 1 - fill) * kTileRows, split_.end()};
  }

  // The thread's row of the `fill`-th tile, or of the last one.
  [[nodiscard]] __device__ RowSlot tile_place(int fill) const {
    const Rows rows = tile_rows(min(fill, split_.tiles() - 1));
    return place_of(rows, rows.begin + row_);
  }
  [[nodiscard]] __device__ RowSource tile_source(int fill, RowSlot place) const {
    const Rows rows = tile_rows(fill);
    return source_of(rows, rows.begin + row_, place);
  }
  // Starts to bring the thread's row of a tile to the level-2 cache.
  __device__ void prefetch_tile(int fill, RowSlot place) const {
    const Rows rows = tile_rows(fill);
    if (rows.begin + row_ < rows.end) prefetch_quarter_row(source_of(rows, rows.begin + row_, place), unit_);
  }

  __device__ void run_tiles() {
    const int count = split_.tiles();
    if (count == 0) {
      wait_for_predecessors();
      return;
    }
    const RowSlot first = tile_place(0);
    RowSlot place[2] = {tile_place(1), tile_place(2)};  // where the thread's rows of the next tiles lie
    LoadedCodes loaded{};
    const RowSource source = tile_source(0, first);
    const std::byte* data = source.data;  // the row that is in registers
    const Rows first_rows = tile_rows(0);
    loaded.load_around(is_known(first_rows, first_rows.begin + row_, first), source, unit_, [&] {
      if (count > 1) prefetch_tile(1, place[0]);
      wait_for_predecessors();
    });
#pragma unroll 1
    for (int fill = 0; fill < count; ++fill) {
      const Rows rows = tile_rows(fill);
      const int slot = fill % 2;
      const bool more = fill + 1 < count;
      const bool exists = rows.begin + row_ < rows.end;
      const RowSource next = tile_source(more ? fill + 1 : fill, place[0]);
      place[0] = place[1];
      if (fill + 2 < count) prefetch_tile(fill + 2, place[0]);
      place[1] = tile_place(fill + 3);
      wait_empty(shared_.empty[slot], fill / 2);
      copy_rope_units(data, exists, shared_.slot[slot], row_, unit_);
      arrive_after_copies(shared_address(&shared_.full[slot]));
      loaded.decode_and_load(exists, shared_.slot[slot], row_, unit_, next, more);
      data = next.data;
      announce(shared_.full[slot]);
    }
  }

  // --- slices: several rows a thread, some of their values -----------------------------------------------

  static constexpr int kPieceTiles = KvSplit<kBlocks>::kPieceTiles;
  static constexpr int kPieceAtoms = KvSplit<kBlocks>::kPieceBytes / kAtomBytes;
  static constexpr int kGroups = kPieceAtoms / kPieceTiles;  // atoms that a slice has in a tile
  struct LoadedPiece {
    uint4 raw[kPieceAtoms];
    std::uint32_t scales[kPieceTiles];
    RowSlot place[kPieceTiles];
  };

  // The last block's slice has the rotated values.
  [[nodiscard]] __device__ bool has_rope() const {
    return split_.rank == kBlocks - 1;
  }
  [[nodiscard]] __device__ bool is_rope(int atom) const {
    return has_rope() && atom % kGroups == kGroups - 1;
  }

  [[nodiscard]] __device__ Rows piece_rows(int piece) const {
    return {piece * KvSplit<kBlocks>::kPieceRows, split_.count};
  }

  [[nodiscard]] __device__ static std::uint32_t scale_of(const LoadedPiece& loaded, int atom) {
    return loaded.scales[atom / kGroups] >> (8 * (atom % kGroups)) & 0xffu;
  }

  __device__ void place_slice(int piece, RowSlot (&place)[kPieceTiles]) const {
    const Rows rows = piece_rows(piece);
#pragma unroll
    for (int tile = 0; tile < kPieceTiles; ++tile) place[tile] = place_of(rows, rows.begin + tile * kTileRows + row_);
  }

  // Rotated values: copy_rope.
  __device__ void load_slice(int piece, const RowSlot (&place)[kPieceTiles], LoadedPiece& loaded) const {
    const Rows rows = piece_rows(piece);
    if (rows.begin >= rows.end) return;
#pragma unroll
    for (int tile = 0; tile < kPieceTiles; ++tile) {
      loaded.place[tile] = place[tile];
      const RowSource source = source_of(rows, rows.begin + tile * kTileRows + row_, place[tile]);
      loaded.scales[tile] = load_scale_bytes<kGroups>(source.scales + split_.rank * kGroups);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int atom = tile * kGroups + i;
        if (is_rope(atom)) continue;
        loaded.raw[atom] = load_unit(source.data + (split_.rank * kGroups + i) * kAtomValues + unit_ * kUnitBytes);
      }
    }
  }

  __device__ void copy_rope(const Rows& rows, const RowSlot (&place)[kPieceTiles], std::uint32_t slot) const {
#pragma unroll
    for (int tile = 0; tile < kPieceTiles; ++tile) {
      const std::int32_t row = rows.begin + tile * kTileRows + row_;
      const std::byte* from = source_of(rows, row, place[tile]).data + Fp8DsMlaRow::kRopeOffset;
      const std::uint32_t atom = slot + ((tile + 1) * kGroups - 1) * kAtomBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 2 * unit_ + i;
        copy_unit(atom + atom_offset(row_, unit), from + unit * kUnitBytes, row < rows.end);
      }
    }
  }

  // `half`: of slot 1, that of the piece.
  __device__ void store_slice(int piece, int half, const LoadedPiece& loaded) {
    const Rows rows = piece_rows(piece);
    wait_empty(shared_.piece_empty[half], piece / 2);
    std::byte* slot = shared_.slot[1] + half * KvSplit<kBlocks>::kPieceBytes;
    if (has_rope()) copy_rope(rows, loaded.place, shared_address(slot));
    std::uint32_t greatest = 0;
#pragma unroll
    for (int atom = 0; atom < kPieceAtoms; ++atom) {
      if (is_rope(atom)) continue;
      const bool exists = rows.begin + atom / kGroups * kTileRows + row_ < rows.end;
      const std::uint32_t scale = scale_of(loaded, atom);
      greatest = max(greatest, scale);
      uint4 values[2];
      decode_e4m3_unit_by_bits(loaded.raw[atom], exists ? e4m3_factor(scale) : 0, values);
      store_atom(slot, atom, row_, unit_, values[0], values[1]);
    }
    if (greatest > kGreatestFactor) {
#pragma unroll
      for (int atom = 0; atom < kPieceAtoms; ++atom) {
        const std::uint32_t scale = scale_of(loaded, atom);
        if (!is_rope(atom) && scale > kGreatestFactor) correct_atom(slot, atom, row_, unit_, scale);
      }
    }
    if (has_rope()) arrive_after_copies(shared_address(&shared_.piece_full[half]));
    announce(shared_.piece_full[half]);
  }

  // Stores a piece and starts to load the one after the next.
  __device__ void take_slice(int piece, int half, LoadedPiece& loaded) {
    RowSlot place[kPieceTiles];
    place_slice(piece + 2, place);
    store_slice(piece, half, loaded);
    load_slice(piece + 2, place, loaded);
  }

  __device__ void run_slices(int count) {
    LoadedPiece even;
    LoadedPiece odd;
    RowSlot place[2][kPieceTiles];
    place_slice(0, place[0]);
    place_slice(1, place[1]);
    load_slice(0, place[0], even);
    load_slice(1, place[1], odd);
    wait_empty(shared_.empty[1], split_.score_fills(1));
#pragma unroll 1
    for (int k = 0; k < count; k += 2) {
      take_slice(k, 0, even);
      if (k + 1 < count) take_slice(k + 1, 1, odd);
    }
  }

  const AttendParams& p_;
  std::int32_t slot_;
  std::int32_t start_;
  std::int32_t window_;
  const KvSplit<kBlocks>& split_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x) - kConsumers;
  int row_ = thread_ / 4;   // the thread's row of a tile
  int unit_ = thread_ % 4;  // the thread's unit of an atom's 64 codes
};

}  // namespace dsv4rt::cuda
