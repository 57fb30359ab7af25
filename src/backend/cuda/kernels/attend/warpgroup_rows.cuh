// The producers of warpgroup_plan.cuh: packed rows from global memory to BF16 cells in the slots.
//
// Producer t takes the 16-byte unit t % 4 of row t / 4 of every cell, so that neighbouring threads read 64
// bytes of a row and write cells without bank conflicts. The loads of the next piece start as soon as a
// register is free.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_sync.cuh"
#include "backend/cuda/kernels/attend/warpgroup_plan.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "layout/fp8_ds_mla.h"

namespace dsv4rt::cuda {

__device__ inline uint4 load_unit_once(const std::byte* address) {
  uint4 unit;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(__cvta_generic_to_global(address)));
  return unit;
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
  for (int i = 0; i < 4; ++i) {
    // Code seeeemmm becomes s0000eee in the value's high byte, emmm0000 in its low one.
    const std::uint32_t high = (words[i] & 0x80808080u) | ((words[i] >> 4) & 0x07070707u);
    const std::uint32_t low = (words[i] << 4) & 0xf0f0f0f0u;
    values[2 * i] = multiply_bf16_pair(__byte_perm(low, high, 0x5140), factor);
    values[2 * i + 1] = multiply_bf16_pair(__byte_perm(low, high, 0x7362), factor);
  }
  out[0] = make_uint4(values[0], values[1], values[2], values[3]);
  out[1] = make_uint4(values[4], values[5], values[6], values[7]);
}

// 2^(scale - 7), twice. Scales above 2^7 do not fit: their rows are corrected afterwards.
inline constexpr std::uint32_t kGreatestFactor = 134;
__device__ inline std::uint32_t e4m3_factor(std::uint32_t scale) {
  return (min(scale, kGreatestFactor) + 120) * 0x00800080u;
}

// Of a compressed row of a sequence; blocks have a power of two rows.
__device__ inline RowPlace place_of(const AttendParams& p, std::int32_t slot, std::int32_t row) {
  const int shift = __ffs(p.rows.shape.rows) - 1;
  const auto block =
      static_cast<std::uint32_t>(__ldg(p.rows.block_table + slot * p.rows.table_stride + (row >> shift)));
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
__device__ inline RowSource compressed_source(const AttendParams& p, RowPlace place) {
  const std::int32_t rows = p.rows.shape.rows;
  const std::byte* block = p.rows.blocks + (place >> (__ffs(rows) - 1)) * p.rows.shape.block_bytes;
  return row_source(block, rows, place & static_cast<std::uint32_t>(rows - 1));
}
__device__ inline RowSource window_source(const AttendParams& p, std::int32_t slot, RowPlace place) {
  const bool staged = place >= kStagedRow;
  return row_source(staged ? p.staged : p.ring.base + slot * p.ring.slot_bytes,
                    staged ? p.staged_shape.rows : p.ring.shape.rows, place & ~kStagedRow);
}
// Starts to bring a row to the level-2 cache.
__device__ inline void prefetch_row(const RowSource& source) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;\n" ::"l"(__cvta_generic_to_global(source.data)),
               "n"(Fp8DsMlaRow::kDataBytes));
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(source.scales)));
}

template <int kBlocks>
class RowProducer {
 public:
  using Shared = WarpgroupShared<kBlocks>;

  __device__ RowProducer(const AttendParams& params, const TokenRows& rows, const Share<kBlocks>& share, Shared& shared)
      : p_(params), slot_(rows.place.slot), window_(rows.window), share_(share), shared_(shared) {}

  __device__ void run() {
    const int tiles = share_.tiles();
    const int pieces = share_.pieces();
    if constexpr (kBlocks == 1) {
      const int total = tiles + pieces - share_.resident();
      run_tiles(total, [&](int k) {
        if (k < tiles) return Piece{(tiles - 1 - k) * kTileRows, share_.count, k % 2, k / 2};
        return value_piece(k - tiles + share_.resident());
      });
    } else {
      run_tiles(tiles, [&](int k) {
        return Piece{share_.begin() + (tiles - 1 - k) * kTileRows, share_.end(), k % 2, k / 2};
      });
      run_slices(pieces);
    }
  }

 private:
  // What fills a slot once: a tile with all values, or several tiles of the block's slice.
  struct Piece {
    std::int32_t begin;  // first row of the token
    std::int32_t end;    // rows from here on do not exist; at least one does
    int slot;
    int fill;  // number of this slot's fill
  };
  [[nodiscard]] __device__ Piece value_piece(int number) const {
    if constexpr (kBlocks == 1) {
      return {number * kTileRows, share_.count, share_.slot_of(number), share_.fill_of(number)};
    }
    return {number * Share<kBlocks>::kPieceRows, share_.count, number % 2, number / 2};
  }

  // Before the `fill`-th filling.
  __device__ static void wait_empty(std::uint64_t& empty, int fill) {
    if (fill > 0) barrier_wait(&empty, (fill - 1) & 1);
  }
  __device__ void announce(std::uint64_t& full) {
    fence_async_proxy();
    __syncwarp();
    if (thread_ % 32 == 0) barrier_arrive(&full);
  }

  // This thread's row of a tile; of rows that do not exist, the last one that does.
  __device__ RowSource locate(const Piece& piece, int tile) const {
    const std::int32_t row = min(piece.begin + tile * kTileRows + row_, piece.end - 1);
    const std::int32_t compressed = row - window_;
    if (compressed < 0) return window_source(p_, slot_, shared_.place[row]);
    return compressed_source(
        p_, compressed < kPlacedRows ? shared_.place[kPlacedWindow + compressed] : place_of(p_, slot_, compressed));
  }
  [[nodiscard]] __device__ bool exists(const Piece& piece, int tile) const {
    return piece.begin + tile * kTileRows + row_ < piece.end;
  }

  __device__ void store_cell(std::byte* slot, int cell, const uint4& first, const uint4& second) const {
    std::byte* to = slot + cell * kCellBytes;
    *reinterpret_cast<uint4*>(to + cell_offset(row_, 2 * unit_)) = first;
    *reinterpret_cast<uint4*>(to + cell_offset(row_, 2 * unit_ + 1)) = second;
  }
  // Products that were made with kGreatestFactor, by what is missing.
  __device__ void correct_cell(std::byte* slot, int cell, std::uint32_t scale) const {
    const std::uint32_t rest = scale == 255 ? 0x7fc07fc0u : (scale - kGreatestFactor + 127) * 0x00800080u;
#pragma unroll 1
    for (int i = 0; i < 8; ++i) {
      auto* pair =
          reinterpret_cast<std::uint32_t*>(slot + cell * kCellBytes + cell_offset(row_, 2 * unit_ + i / 4)) + i % 4;
      *pair = multiply_bf16_pair(*pair, rest);
    }
  }

  // --- tiles: every thread has one row -------------------------------------------------------------------

  template <class PieceAt>
  __device__ void run_tiles(int count, const PieceAt& piece_at) {
    if (count == 0) return;
    uint4 raw[kCells - 1];  // the next piece, as loaded
    uint4 rope[2];
    Piece now = piece_at(0);
    RowSource source = locate(now, 0);
    uint2 scales = __ldg(reinterpret_cast<const uint2*>(source.scales));
    const std::byte* from = source.data + unit_ * kUnitBytes;
#pragma unroll
    for (int cell = 0; cell < kCells - 1; ++cell) raw[cell] = load_unit_once(from + cell * kCellValues);
#pragma unroll
    for (int i = 0; i < 2; ++i) rope[i] = load_unit_once(from + Fp8DsMlaRow::kRopeOffset + (unit_ + i) * kUnitBytes);
#pragma unroll 1
    for (int k = 0; k < count; ++k) {
      const Piece next = piece_at(min(k + 1, count - 1));
      source = locate(next, 0);
      from = source.data + unit_ * kUnitBytes;
      wait_empty(shared_.empty[now.slot], now.fill);
      const uint2 scale_words = exists(now, 0) ? scales : uint2{};
      const std::uint32_t present = exists(now, 0) ? 0xffffffffu : 0;
      scales = __ldg(reinterpret_cast<const uint2*>(source.scales));
      std::byte* slot = shared_.slot[now.slot];
      std::uint32_t greatest = 0;
#pragma unroll
      for (int cell = 0; cell < kCells - 1; ++cell) {
        const std::uint32_t scale = (cell < 4 ? scale_words.x : scale_words.y) >> (8 * (cell % 4)) & 0xffu;
        greatest = max(greatest, scale);
        uint4 values[2];
        decode_e4m3_unit_by_bits(raw[cell], e4m3_factor(scale) & present, values);
        store_cell(slot, cell, values[0], values[1]);
        if (cell % 2 == 1) {
#pragma unroll
          for (int c = cell - 1; c <= cell; ++c) raw[c] = load_unit_once(from + c * kCellValues);
          __syncwarp();  // keeps the loads where they are: early
        }
      }
      raw[kCells - 2] = load_unit_once(from + (kCells - 2) * kCellValues);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rope[i].x &= present;
        rope[i].y &= present;
        rope[i].z &= present;
        rope[i].w &= present;
      }
      store_cell(slot, kCells - 1, rope[0], rope[1]);
#pragma unroll
      for (int i = 0; i < 2; ++i) rope[i] = load_unit_once(from + Fp8DsMlaRow::kRopeOffset + (unit_ + i) * kUnitBytes);
      if (greatest > kGreatestFactor) {
#pragma unroll 1
        for (int cell = 0; cell < kCells - 1; ++cell) {
          const std::uint32_t scale = (cell < 4 ? scale_words.x : scale_words.y) >> (8 * (cell % 4)) & 0xffu;
          if (scale > kGreatestFactor) correct_cell(slot, cell, scale);
        }
      }
      announce(shared_.full[now.slot]);
      now = next;
    }
  }

  // --- slices: several rows a thread, some of their values -----------------------------------------------

  static constexpr int kPieceTiles = Share<kBlocks>::kPieceTiles;
  static constexpr int kPieceCells = Share<kBlocks>::kPieceBytes / kCellBytes;
  static constexpr int kGroups = kPieceCells / kPieceTiles;  // of a slice
  struct LoadedPiece {
    uint4 raw[kPieceCells];
    std::uint32_t scale[kPieceCells];
  };

  [[nodiscard]] __device__ bool is_rope(int cell) const {
    return share_.rank == kBlocks - 1 && cell % kGroups == kGroups - 1;
  }

  // Rotated values: copy_rope.
  __device__ void load_slice(const Piece& piece, LoadedPiece& loaded) {
    if (piece.begin >= piece.end) return;
#pragma unroll
    for (int tile = 0; tile < kPieceTiles; ++tile) {
      const RowSource source = locate(piece, tile);
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        const int cell = tile * kGroups + i;
        if (is_rope(cell)) continue;
        const int group = share_.rank * kGroups + i;
        loaded.raw[cell] = load_unit_once(source.data + group * kCellValues + unit_ * kUnitBytes);
        loaded.scale[cell] = __ldg(reinterpret_cast<const unsigned char*>(source.scales) + group);
      }
    }
  }

  __device__ void copy_rope(const Piece& piece, std::uint32_t slot) {
    if (share_.rank != kBlocks - 1) return;
#pragma unroll 1
    for (int tile = 0; tile < kPieceTiles; ++tile) {
      const std::byte* from = locate(piece, tile).data + Fp8DsMlaRow::kRopeOffset;
      const std::uint32_t cell = slot + ((tile + 1) * kGroups - 1) * kCellBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 2 * unit_ + i;
        copy_unit(cell + cell_offset(row_, unit), from + unit * kUnitBytes, exists(piece, tile));
      }
    }
  }

  __device__ void store_slice(const Piece& piece, const LoadedPiece& loaded) {
    wait_empty(shared_.piece_empty[piece.slot], piece.fill);
    std::byte* slot = shared_.slot[1] + piece.slot * Share<kBlocks>::kPieceBytes;
    copy_rope(piece, shared_address(slot));
#pragma unroll
    for (int cell = 0; cell < kPieceCells; ++cell) {
      if (is_rope(cell)) continue;
      const std::uint32_t scale = loaded.scale[cell];
      uint4 values[2];
      decode_e4m3_unit_by_bits(loaded.raw[cell], exists(piece, cell / kGroups) ? e4m3_factor(scale) : 0, values);
      store_cell(slot, cell, values[0], values[1]);
      if (scale > kGreatestFactor) correct_cell(slot, cell, scale);
    }
    wait_for_copies();
    announce(shared_.piece_full[piece.slot]);
  }

  __device__ void run_slices(int count) {
    LoadedPiece even;
    LoadedPiece odd;
    load_slice(value_piece(0), even);
    load_slice(value_piece(1), odd);
    wait_empty(shared_.empty[1], share_.score_fills(1));
#pragma unroll 1
    for (int k = 0; k < count; k += 2) {
      store_slice(value_piece(k), even);
      load_slice(value_piece(k + 2), even);
      if (k + 1 == count) break;
      store_slice(value_piece(k + 1), odd);
      load_slice(value_piece(k + 3), odd);
    }
  }

  const AttendParams& p_;
  std::int32_t slot_;
  std::int32_t window_;
  const Share<kBlocks>& share_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x) - kConsumers;
  int row_ = thread_ / 4;   // of a cell
  int unit_ = thread_ % 4;  // of a cell's 64 codes
};

}  // namespace dsv4rt::cuda
