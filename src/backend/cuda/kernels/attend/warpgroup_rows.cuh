// The producers of warpgroup_plan.cuh: packed rows from global memory to BF16 cells in the slots.
//
// Producer t takes the 16-byte unit t % 4 of row t / 4 of every cell, so that neighbouring threads read 64
// bytes of a row and write cells without bank conflicts. The loads of the next piece start as soon as a
// register is free; rotated values need no conversion and are copied at once.
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

// Scale code of a row that does not exist: its values are zero.
inline constexpr std::uint32_t kNoScale = 0x100;

// Sixteen E4M3 codes times 2^(scale - 127). A code's bits, moved to a BF16's place, are the value times 2^-120
// (subnormal codes included), so that one exact product restores it. A NaN code makes all sixteen NaN: its row's
// score, weight and share of every output are NaN anyway.
__device__ inline void decode_e4m3_unit_by_bits(const uint4& codes, std::uint32_t scale, uint4 (&out)[2]) {
  const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  constexpr std::uint32_t kGreatestScale = 134;  // whose factor is a BF16
  constexpr std::uint32_t kNanScale = 255;
  std::uint32_t nan = 0;
#pragma unroll
  for (const std::uint32_t word : words) nan |= (word & 0x7f7f7f7fu) + 0x01010101u;
  std::uint32_t factor = (min(scale, kGreatestScale) + 120) * 0x00800080u;  // 2^(scale - 7), twice
  if ((nan & 0x80808080u) != 0 || scale == kNanScale) factor = 0x7fc07fc0u;
  if (scale == kNoScale) factor = 0;
  std::uint32_t values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t pair = __byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
    values[i] = multiply_bf16_pair((pair & 0x80008000u) | ((pair >> 4) & 0x07f007f0u), factor);
  }
  if (scale > kGreatestScale && scale < kNanScale) {
    const std::uint32_t rest = (scale - kGreatestScale + 127) * 0x00800080u;
#pragma unroll
    for (std::uint32_t& value : values) value = multiply_bf16_pair(value, rest);
  }
  out[0] = make_uint4(values[0], values[1], values[2], values[3]);
  out[1] = make_uint4(values[4], values[5], values[6], values[7]);
}

// Blocks of a power of two rows, beyond the places that are looked up once.
__device__ inline RowPlace place_of_dense(const AttendParams& p, std::int32_t slot, std::int32_t row) {
  const int shift = __ffs(p.rows.shape.rows) - 1;
  const std::int32_t block = __ldg(p.rows.block_table + slot * p.rows.table_stride + (row >> shift));
  return {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(row & (p.rows.shape.rows - 1))};
}

template <int kBlocks>
class RowProducer {
 public:
  using Shared = WarpgroupShared<kBlocks>;

  __device__ RowProducer(const AttendParams& params, const TokenRows& rows, const Share<kBlocks>& share,
                         Shared& shared)
      : p_(params),
        slot_(rows.place.slot),
        window_(rows.window),
        share_(share),
        shared_(shared) {}

  __device__ void run() {
    const int pieces = share_.tiles() + share_.pieces() - share_.resident();
    Piece now = piece(0);
#pragma unroll
    for (int cell = 0; cell < kCells; ++cell) load_cell(cell, now);
#pragma unroll 1
    for (int k = 0; k < pieces; ++k) {
      const Piece next = piece(min(k + 1, pieces - 1));
      if (now.fill > 0) barrier_wait(&shared_.empty[now.slot], (now.fill - 1) & 1);
      fill(now, next);
      now = next;
    }
  }

 private:
  // What fills a slot once: a tile of the share, or rows of the block's slice.
  struct Piece {
    std::int32_t begin;  // first row of the token
    std::int32_t end;    // rows from here on do not exist; at least one does
    int slot;
    int fill;  // number of this slot's fill
    bool slice;
  };
  static constexpr int kGroups = kCells / kBlocks;  // of a slice

  [[nodiscard]] __device__ Piece piece(int k) const {
    const int tiles = share_.tiles();
    if (k < tiles) {
      return {share_.begin() + (tiles - 1 - k) * kTileRows, share_.end(), k % 2, k / 2, false};
    }
    const int number = k - tiles + share_.resident();
    return {number * Share<kBlocks>::kPieceRows, share_.count, share_.slot_of(number), share_.fill_of(number),
            kBlocks > 1};
  }

  // A cell's tile in the piece and its group of 64 values.
  [[nodiscard]] __device__ static int tile_of(const Piece& piece, int cell) { return piece.slice ? cell / kGroups : 0; }
  [[nodiscard]] __device__ int group_of(const Piece& piece, int cell) const {
    return piece.slice ? share_.rank * kGroups + cell % kGroups : cell;
  }

  struct RowSource {
    const std::byte* data;
    const std::byte* scales;
  };
  // This thread's row of a tile; of rows that do not exist, the last one that does.
  __device__ RowSource locate(const Piece& piece, int tile) const {
    const std::int32_t row = min(piece.begin + tile * kTileRows + row_, piece.end - 1);
    const std::int32_t compressed = row - window_;
    const RowPlace place = compressed < kPlacedRows
                               ? shared_.place[compressed < 0 ? row : kPlacedWindow + compressed]
                               : place_of_dense(p_, slot_, compressed);
    const std::byte* block = p_.rows.blocks + place.block * p_.rows.shape.block_bytes;
    std::int32_t rows = p_.rows.shape.rows;
    if (place.block == kRingBlock) {
      block = p_.ring.base + slot_ * p_.ring.slot_bytes;
      rows = p_.ring.shape.rows;
    } else if (place.block == kStagedBlock) {
      block = p_.staged;
      rows = p_.staged_shape.rows;
    }
    return {block + std::int64_t{place.row} * Fp8DsMlaRow::kDataBytes,
            block + std::int64_t{rows} * Fp8DsMlaRow::kDataBytes + std::int64_t{place.row} * Fp8DsMlaRow::kScaleBytes};
  }

  __device__ void load_cell(int cell, const Piece& piece) {
    if (cell == 0 || (cell % kGroups == 0 && piece.slice)) source_ = locate(piece, tile_of(piece, cell));
    const int group = group_of(piece, cell);
    if (group == kCells - 1) return;  // rotated values: copy_rope
    raw_[cell] = load_unit_once(source_.data + group * kCellValues + unit_ * kUnitBytes);
    scale_[cell] = __ldg(reinterpret_cast<const unsigned char*>(source_.scales) + group);
  }

  // Values of the rotated group go to their cells as they are.
  __device__ void copy_rope(const Piece& piece, std::uint32_t slot) {
    if (piece.slice && share_.rank != kBlocks - 1) return;
    const int tiles = piece.slice ? kBlocks : 1;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const bool exists = piece.begin + tile * kTileRows + row_ < piece.end;
      const std::byte* from = locate(piece, tile).data + Fp8DsMlaRow::kRopeOffset;
      const std::uint32_t cell = slot + ((piece.slice ? (tile + 1) * kGroups : kCells) - 1) * kCellBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 2 * unit_ + i;
        copy_unit(cell + cell_offset(row_, unit), from + unit * kUnitBytes, exists);
      }
    }
  }

  // The loaded piece into its slot, while the next one is being loaded.
  __device__ void fill(const Piece& now, const Piece& next) {
    std::byte* slot = shared_.slot[now.slot];
    copy_rope(now, shared_address(slot));
    std::byte* first = slot + cell_offset(row_, 2 * unit_);
    std::byte* second = slot + cell_offset(row_, 2 * unit_ + 1);
#pragma unroll
    for (int cell = 0; cell < kCells; ++cell) {
      if (group_of(now, cell) != kCells - 1) {
        const bool exists = now.begin + tile_of(now, cell) * kTileRows + row_ < now.end;
        uint4 values[2];
        decode_e4m3_unit_by_bits(raw_[cell], exists ? scale_[cell] : kNoScale, values);
        *reinterpret_cast<uint4*>(first + cell * kCellBytes) = values[0];
        *reinterpret_cast<uint4*>(second + cell * kCellBytes) = values[1];
      }
      load_cell(cell, next);
    }
    wait_for_copies();
    fence_async_proxy();
    __syncwarp();
    if (thread_ % 32 == 0) barrier_arrive(&shared_.full[now.slot]);
  }

  const AttendParams& p_;
  std::int32_t slot_;
  std::int32_t window_;
  const Share<kBlocks>& share_;
  Shared& shared_;
  int thread_ = static_cast<int>(threadIdx.x) - kConsumers;
  int row_ = thread_ / 4;   // of a cell
  int unit_ = thread_ % 4;  // of a cell's 64 codes
  uint4 raw_[kCells];       // the next piece, as loaded
  std::uint32_t scale_[kCells];
  RowSource source_;
};

}  // namespace dsv4rt::cuda
