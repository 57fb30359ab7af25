// The producers of warpgroup_plan.cuh: packed rows from global memory to BF16 atoms in the slots.
//
// A slot of tiles has four warps of its own: while they wait for rows or for the slot, the other slot's warps decode.
// Consumers make the atoms visible to matrix instructions.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/packed_row.cuh"
#include "backend/cuda/kernels/attend/warpgroup_plan.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "layout/fp8_ds_mla.h"

namespace dsv4rt::cuda {

inline constexpr int kProducersBarrier = 3;

template <int kBlocks>
class RowProducer {
 public:
  using Shared = WarpgroupShared<kBlocks>;

  // `place`: of the token's rows.
  __device__ RowProducer(const AttendParams& params, const TokenRows& rows, const KvSplit<kBlocks>& split,
                         const RowSlot* place, Shared& shared)
      : p_(params),
        slot_(rows.place.slot),
        window_(rows.window),
        first_(rows.place.position == rows.place.start),
        split_(split),
        place_(place),
        shared_(shared) {}

  __device__ void run() {
    run_tiles();
    if constexpr (kBlocks > 1) run_slices(split_.pieces());
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

  // Row `row` of the token; of rows that do not exist, the last one that does.
  [[nodiscard]] __device__ RowSource locate(const Rows& rows, std::int32_t row) const {
    row = min(row, rows.end - 1);
    const std::int32_t compressed = row - window_;
    if (compressed < 0) return window_source(p_, slot_, place_[row]);
    const bool placed = kBlocks == 1 || compressed < Shared::kMapped;
    return compressed_source(p_, placed ? place_[kMappedWindow + compressed] : row_slot(p_, slot_, compressed));
  }

  // --- tiles: warps 4 i .. 4 i + 3 fill slot i, half a tile at a time --------------------------------------

  static constexpr int kHalfRows = kTileRows / 2;
  // One block has other work to do while rows come; there, more copies under way only slow its own stores.
  static constexpr bool kStages = kBlocks > 1;
  // One block brings its rows itself, this many fills of a slot ahead: all of a token's prefetches at once would take
  // longer than its first tiles. Only those of a sequence's first token: the next ones' are much the same rows.
  static constexpr int kAhead = kBlocks == 1 ? 1 : 0;

  // Tile that fills slot group_ for the `fill`-th time.
  [[nodiscard]] __device__ Rows tile_rows(int fill) const {
    const int scored = split_.score_fills(group_);
    if (fill < scored) {
      return {split_.begin() + (split_.tiles() - 1 - (2 * fill + group_)) * kTileRows, split_.end()};
    }
    return {(split_.first_piece(group_) + 2 * (fill - scored)) * kTileRows, split_.count};
  }

  // Units of the first half are loaded while the slot is still in use.
  __device__ void load_row(const Rows& rows, int tile_row, LoadedRow& loaded) const {
    loaded.load(locate(rows, rows.begin + tile_row), unit_);
  }
  __device__ void decode_loaded(const Rows& rows, int tile_row, const LoadedRow& loaded, std::byte* slot) const {
    loaded.decode(rows.begin + tile_row < rows.end, slot, tile_row, unit_);
  }

  // Starts to bring rows [first, kTileRows) of a tile to the level-2 cache.
  __device__ void prefetch_tile(const Rows& rows, int first) const {
    const int tile_row = thread_ % 128 / 2;
    const std::int32_t row = rows.begin + tile_row;
    if (tile_row >= first && row < rows.end) prefetch_half_row(locate(rows, row), thread_ % 2);
  }

  // Another way for the second half: its codes wait, packed, where the first half of their values will lie.
  __device__ void stage_row(const Rows& rows, std::byte* slot, uint2& scales) const {
    const std::int32_t row = rows.begin + kHalfRows + half_row_;
    const RowSource source = locate(rows, row);
    const bool exists = row < rows.end;  // otherwise codes and scales are zero
    scales = exists ? load_scales(source.scales) : uint2{};
    stage_row_units(source, exists, slot, kHalfRows + half_row_, unit_);
  }
  __device__ void decode_staged(const uint2& scales, std::byte* slot) const {
    wait_for_copies();
    decode_staged_row(slot, kHalfRows + half_row_, unit_, scales);
  }

  __device__ void run_tiles() {
    const int fills = split_.fills(group_);
    const int filled = split_.filled_before(group_);
    std::byte* slot = shared_.slot[group_];
    LoadedRow loaded{};  // otherwise the previous token's would be kept while the next one's rows are placed
    if (fills > 0) load_row(tile_rows(0), half_row_, loaded);
    const int brought = kAhead > 0 && first_ ? split_.score_fills(group_) : 0;  // later fills are of the same rows
#pragma unroll
    for (int fill = 0; fill < kAhead; ++fill) {
      if (fill < brought) prefetch_tile(tile_rows(fill), fill == 0 ? kHalfRows : 0);
    }
#pragma unroll 1
    for (int fill = 0; fill < fills; ++fill) {
      const Rows rows = tile_rows(fill);
      uint2 scales;
      wait_empty(shared_.empty[group_], filled + fill);
      if constexpr (kStages) stage_row(rows, slot, scales);
      decode_loaded(rows, half_row_, loaded, slot);
      if constexpr (!kStages) {
        load_row(rows, kHalfRows + half_row_, loaded);
        if (fill + kAhead < brought) prefetch_tile(tile_rows(fill + kAhead), 0);
        decode_loaded(rows, kHalfRows + half_row_, loaded, slot);
      }
      if (fill + 1 < fills) load_row(tile_rows(fill + 1), half_row_, loaded);
      if constexpr (kStages) decode_staged(scales, slot);
      announce(shared_.full[group_]);
    }
  }

  // --- slices: several rows a thread, some of their values -----------------------------------------------

  static constexpr int kPieceTiles = KvSplit<kBlocks>::kPieceTiles;
  static constexpr int kPieceAtoms = KvSplit<kBlocks>::kPieceBytes / kAtomBytes;
  static constexpr int kGroups = kPieceAtoms / kPieceTiles;  // atoms that a slice has in a tile
  struct LoadedPiece {
    uint4 raw[kPieceAtoms];
    std::uint32_t scale[kPieceAtoms];
  };

  [[nodiscard]] __device__ bool is_rope(int atom) const {
    return split_.rank == kBlocks - 1 && atom % kGroups == kGroups - 1;
  }

  [[nodiscard]] __device__ Rows piece_rows(int piece) const {
    return {piece * KvSplit<kBlocks>::kPieceRows, split_.count};
  }

  // Rotated values: copy_rope.
  __device__ void load_slice(const Rows& rows, LoadedPiece& loaded) {
    if (rows.begin >= rows.end) return;
#pragma unroll
    for (int tile = 0; tile < kPieceTiles; ++tile) {
      const RowSource source = locate(rows, rows.begin + tile * kTileRows + row_);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int atom = tile * kGroups + i;
        if (is_rope(atom)) continue;
        const int group = split_.rank * kGroups + i;
        loaded.raw[atom] = load_unit(source.data + group * kAtomValues + unit_ * kUnitBytes);
        loaded.scale[atom] = load_scale(source.scales + group);
      }
    }
  }

  __device__ void copy_rope(const Rows& rows, std::uint32_t slot) {
    if (split_.rank != kBlocks - 1) return;
#pragma unroll 1
    for (int tile = 0; tile < kPieceTiles; ++tile) {
      const std::int32_t row = rows.begin + tile * kTileRows + row_;
      const std::byte* from = locate(rows, row).data + Fp8DsMlaRow::kRopeOffset;
      const std::uint32_t atom = slot + ((tile + 1) * kGroups - 1) * kAtomBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 2 * unit_ + i;
        copy_unit(atom + atom_offset(row_, unit), from + unit * kUnitBytes, row < rows.end);
      }
    }
  }

  __device__ void store_slice(int piece, const LoadedPiece& loaded) {
    const Rows rows = piece_rows(piece);
    wait_empty(shared_.piece_empty[piece % 2], piece / 2);
    std::byte* slot = shared_.slot[1] + piece % 2 * KvSplit<kBlocks>::kPieceBytes;
    copy_rope(rows, shared_address(slot));
#pragma unroll
    for (int atom = 0; atom < kPieceAtoms; ++atom) {
      if (is_rope(atom)) continue;
      const bool exists = rows.begin + atom / kGroups * kTileRows + row_ < rows.end;
      const std::uint32_t scale = loaded.scale[atom];
      uint4 values[2];
      decode_e4m3_unit_by_bits(loaded.raw[atom], exists ? e4m3_factor(scale) : 0, values);
      store_atom(slot, atom, row_, unit_, values[0], values[1]);
      if (scale > kGreatestFactor) correct_atom(slot, atom, row_, unit_, scale);
    }
    wait_for_copies();
    announce(shared_.piece_full[piece % 2]);
  }

  __device__ void run_slices(int count) {
    LoadedPiece even;
    LoadedPiece odd;
    load_slice(piece_rows(0), even);
    load_slice(piece_rows(1), odd);
    // Only its own warps know how often slot 1 has been used.
    if (group_ == 1) wait_empty(shared_.empty[1], split_.score_fills(1));
    named_sync(kProducersBarrier, kProducers);
#pragma unroll 1
    for (int k = 0; k < count; k += 2) {
      store_slice(k, even);
      load_slice(piece_rows(k + 2), even);
      if (k + 1 == count) break;
      store_slice(k + 1, odd);
      load_slice(piece_rows(k + 3), odd);
    }
  }

  const AttendParams& p_;
  std::int32_t slot_;
  std::int32_t window_;
  bool first_;  // the token is the first of its sequence in the step
  const KvSplit<kBlocks>& split_;
  const RowSlot* place_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x) - kConsumers;
  int group_ = __shfl_sync(0xffffffffu, thread_ / 128, 0);
  int half_row_ = thread_ % 128 / 4;  // the thread's row of half a tile
  int row_ = thread_ / 4;             // the thread's row of an atom of slices
  int unit_ = thread_ % 4;            // the thread's unit of an atom's 64 codes
};

}  // namespace dsv4rt::cuda
