// The producers of warpgroup_plan.cuh: packed rows from global memory to BF16 atoms in the slots.
//
// A thread takes the 16-byte unit t % 4 of some rows of every atom, so that neighbouring threads read 64 bytes of a
// row and write atoms without bank conflicts. A slot of tiles has four warps of its own: while they wait for rows or
// for the slot, the other slot's warps decode. Consumers make the atoms visible to matrix instructions.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/warpgroup_plan.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "layout/fp8_ds_mla.h"

namespace dsv4rt::cuda {

// Not through the read-only path, which the compiler would choose: with as little first-level cache as this kernel's
// shared memory leaves, it has few loads under way (a tile's rows took four times as long).
__device__ inline uint4 load_unit(const std::byte* address) {
  uint4 unit;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(__cvta_generic_to_global(address)));
  return unit;
}
__device__ inline uint2 load_scales(const std::byte* address) {
  uint2 scales;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];\n"
               : "=r"(scales.x), "=r"(scales.y)
               : "l"(__cvta_generic_to_global(address)));
  return scales;
}
__device__ inline std::uint32_t load_scale(const std::byte* address) {
  std::uint32_t scale;
  asm volatile("ld.global.u8 %0, [%1];\n" : "=r"(scale) : "l"(__cvta_generic_to_global(address)));
  return scale;
}
__device__ inline std::int32_t load_index(const std::int32_t* address) {
  std::int32_t index;
  asm volatile("ld.global.s32 %0, [%1];\n" : "=r"(index) : "l"(__cvta_generic_to_global(address)));
  return index;
}

// Two bytes of `word` with their signs; a selector's digits with 8 added replicate the sign.
__device__ inline std::uint32_t sign_extended_pair(std::uint32_t word, std::uint32_t selector) {
  std::uint32_t pair;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(pair) : "r"(word), "r"(selector));
  return pair;
}

// Sixteen E4M3 codes times 2^(scale - 127), given factor = e4m3_factor(scale). A code's bits, moved to a BF16's
// place, are the value times 2^-120 (subnormal codes included), so that one exact product restores it. A NaN
// code makes all sixteen NaN: its row's score, weight and share of every output are NaN anyway.
__device__ inline void decode_e4m3_unit_by_bits(const uint4& codes, std::uint32_t factor, uint4 (&out)[2]) {
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  std::uint32_t nan = 0;
#pragma unroll
  for (const std::uint32_t word : words) nan |= (word & 0x7f7f7f7fu) + 0x01010101u;
  if ((nan & 0x80808080u) != 0) factor = 0x7fc07fc0u;
  std::uint32_t values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Code seeeemmm, sign-extended to 16 bits, times 16: sssssseeeemmm0000, then s0000eeeemmm0000.
    const std::uint32_t pair = sign_extended_pair(words[i / 2], i % 2 == 0 ? 0x9180u : 0xb3a2u);
    values[i] = multiply_bf16_pair((pair * 16) & 0x87f087f0u, factor);
  }
  out[0] = make_uint4(values[0], values[1], values[2], values[3]);
  out[1] = make_uint4(values[4], values[5], values[6], values[7]);
}

// 2^(scale - 7), twice. Scales above 2^7 do not fit: their rows are corrected afterwards.
inline constexpr std::uint32_t kGreatestFactor = 134;
__device__ inline std::uint32_t e4m3_factor(std::uint32_t scale) {
  return (min(scale, kGreatestFactor) + 120) * 0x00800080u;
}

// The slot of a compressed row of a sequence; blocks have a power of two rows.
__device__ inline RowSlot row_slot(const AttendParams& p, std::int32_t slot, std::int32_t row) {
  const int shift = __ffs(p.rows.shape.rows) - 1;
  const auto block =
      static_cast<std::uint32_t>(load_index(p.rows.block_table + slot * p.rows.table_stride + (row >> shift)));
  return (block << shift) | static_cast<std::uint32_t>(row & (p.rows.shape.rows - 1));
}

struct RowSource {
  const std::byte* data;
  const std::byte* scales;
};
__device__ inline RowSource row_source(const std::byte* block, std::int32_t rows, std::uint32_t row) {
  return {block + std::int64_t{row} * Fp8DsMlaRow::kDataBytes,
          block + std::int64_t{rows} * Fp8DsMlaRow::kDataBytes + std::int64_t{row} * Fp8DsMlaRow::kScaleBytes};
}
__device__ inline RowSource compressed_source(const AttendParams& p, RowSlot place) {
  const std::int32_t rows = p.rows.shape.rows;
  const std::byte* block = p.rows.blocks + (place >> (__ffs(rows) - 1)) * p.rows.shape.block_bytes;
  return row_source(block, rows, place & static_cast<std::uint32_t>(rows - 1));
}
__device__ inline RowSource window_source(const AttendParams& p, std::int32_t slot, RowSlot place) {
  const bool staged = place >= kStagedRow;
  return row_source(staged ? p.staged : p.ring.base + slot * p.ring.slot_bytes,
                    staged ? p.staged_shape.rows : p.ring.shape.rows, place & ~kStagedRow);
}
// Starts to bring a half of a row's lines to the level-2 cache: the data starts at a multiple of 64 bytes and lies in
// five, the scales lie in another one. A bulk prefetch instead of the five would take the copy engine about 20 clocks,
// and a warp's threads issue theirs one after the other.
inline constexpr int kLineBytes = 128;
static_assert(Fp8DsMlaRow::kDataBytes == 4 * kLineBytes + 64);
__device__ inline void prefetch_half_row(const RowSource& source, int half) {
  const std::byte* first = source.data + half * 3 * kLineBytes;
  const std::byte* last = half == 0 ? first + 2 * kLineBytes : source.scales;
  for (const std::byte* line : {first, first + kLineBytes, last}) {
    asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(line)));
  }
}
__device__ inline void prefetch_row(const RowSource& source) {
  prefetch_half_row(source, 0);
  prefetch_half_row(source, 1);
}

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

  __device__ void store_atom(std::byte* slot, int atom, int row, const uint4& first, const uint4& second) const {
    std::byte* to = slot + atom * kAtomBytes;
    *reinterpret_cast<uint4*>(to + atom_offset(row, 2 * unit_)) = first;
    *reinterpret_cast<uint4*>(to + atom_offset(row, 2 * unit_ + 1)) = second;
  }
  // Scale of a row's group of 64 values.
  [[nodiscard]] __device__ static std::uint32_t scale_of(const uint2& scales, int atom) {
    return (atom < 4 ? scales.x : scales.y) >> (8 * (atom % 4)) & 0xffu;
  }
  // Products that were made with kGreatestFactor, by what is missing.
  __device__ void correct_row(std::byte* slot, int row, const uint2& scales) const {
#pragma unroll 1
    for (int atom = 0; atom < kAtoms - 1; ++atom) {
      if (scale_of(scales, atom) > kGreatestFactor) correct_atom(slot, atom, row, scale_of(scales, atom));
    }
  }
  __device__ void correct_atom(std::byte* slot, int atom, int row, std::uint32_t scale) const {
    const std::uint32_t rest = scale == 255 ? 0x7fc07fc0u : (scale - kGreatestFactor + 127) * 0x00800080u;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      auto* pair =
          reinterpret_cast<std::uint32_t*>(slot + atom * kAtomBytes + atom_offset(row, 2 * unit_ + i / 4)) + i % 4;
      *pair = multiply_bf16_pair(*pair, rest);
    }
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

  // The thread's units of a row in registers; those of the first half are loaded while the slot is still in use.
  struct LoadedRow {
    uint4 raw[kAtoms - 1];
    uint4 rope[2];
    uint2 scales;
  };
  __device__ void load_row(const Rows& rows, int tile_row, LoadedRow& loaded) const {
    const RowSource source = locate(rows, rows.begin + tile_row);
    loaded.scales = load_scales(source.scales);
    const std::byte* from = source.data + unit_ * kUnitBytes;
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) loaded.raw[atom] = load_unit(from + atom * kAtomValues);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      loaded.rope[i] = load_unit(from + Fp8DsMlaRow::kRopeOffset + (unit_ + i) * kUnitBytes);
    }
  }
  __device__ void decode_loaded(const Rows& rows, int tile_row, const LoadedRow& loaded, std::byte* slot) const {
    const bool exists = rows.begin + tile_row < rows.end;
    const std::uint32_t present = exists ? 0xffffffffu : 0;
    const uint2 scales = exists ? loaded.scales : uint2{};
    std::uint32_t greatest = 0;
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) {
      const std::uint32_t scale = scale_of(scales, atom);
      greatest = max(greatest, scale);
      uint4 values[2];
      decode_e4m3_unit_by_bits(loaded.raw[atom], e4m3_factor(scale) & present, values);
      store_atom(slot, atom, tile_row, values[0], values[1]);
    }
    uint4 rope[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& values = loaded.rope[i];
      rope[i] = make_uint4(values.x & present, values.y & present, values.z & present, values.w & present);
    }
    store_atom(slot, kAtoms - 1, tile_row, rope[0], rope[1]);
    if (greatest > kGreatestFactor) correct_row(slot, tile_row, scales);
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
    const std::byte* from = source.data + unit_ * kUnitBytes;
    const std::uint32_t first = shared_address(slot) + atom_offset(kHalfRows + half_row_, 2 * unit_);
    const std::uint32_t second = shared_address(slot) + atom_offset(kHalfRows + half_row_, 2 * unit_ + 1);
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) {
      copy_unit(first + atom * kAtomBytes, from + atom * kAtomValues, exists);
    }
    constexpr int kRopeAtom = (kAtoms - 1) * kAtomBytes;
    const std::byte* rope = from + Fp8DsMlaRow::kRopeOffset + unit_ * kUnitBytes;
    copy_unit(first + kRopeAtom, rope, exists);
    copy_unit(second + kRopeAtom, rope + kUnitBytes, exists);
  }
  __device__ void decode_staged(const uint2& scales, std::byte* slot) const {
    wait_for_copies();
    const int row = kHalfRows + half_row_;
    std::uint32_t greatest = 0;
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) {
      const std::uint32_t scale = scale_of(scales, atom);
      greatest = max(greatest, scale);
      uint4 values[2];
      const std::byte* codes = slot + atom * kAtomBytes + atom_offset(row, 2 * unit_);
      decode_e4m3_unit_by_bits(*reinterpret_cast<const uint4*>(codes), e4m3_factor(scale), values);
      store_atom(slot, atom, row, values[0], values[1]);
    }
    if (greatest > kGreatestFactor) correct_row(slot, row, scales);
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
      store_atom(slot, atom, row_, values[0], values[1]);
      if (scale > kGreatestFactor) correct_atom(slot, atom, row_, scale);
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
