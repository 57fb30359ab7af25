// Packed rows of the fp8_ds_mla format: where they lie, and their way through registers to BF16 atoms.
//
// A thread takes the 16-byte unit t % 4 of a row in every atom, so that neighbouring threads read 64 bytes of a row and
// write atoms without bank conflicts.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/attend/token_rows.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/bf16_words.cuh"
#include "backend/cuda/kernels/common/early_reads.cuh"
#include "backend/cuda/kernels/common/predicated_load.cuh"
#include "backend/cuda/kernels/common/row_decode.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"
#include "layout/fp8_ds_mla.h"

namespace dsv4rt::cuda {

// Where a row lies. Compressed: its number in the pool, block * rows of a block + row; fewer than 2^32 rows exist.
// Window: the row of the ring, or of the staged rows with this flag. Of rows that lie decoded, both: the number there.
using RowSlot = std::uint32_t;
inline constexpr RowSlot kStagedRow = 0x80000000u;

// Not through the read-only path, which the compiler would choose: with as little first-level cache as this kernel's
// shared memory leaves, it has few loads under way (a tile's rows took four times as long).
__device__ inline uint4 load_unit(const std::byte* address) {
  uint4 unit;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(__cvta_generic_to_global(address)));
  return unit;
}
// The same of a row that few tokens read: it leaves the level-2 cache before what other kernels find there again.
__device__ inline uint4 load_passing_unit(const std::byte* address) {
  uint4 unit;
  asm volatile("ld.global.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;\n"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "l"(__cvta_generic_to_global(address)), "l"(kEvictFirstPolicy));
  return unit;
}
__device__ inline uint2 load_scales(const std::byte* address) {
  uint2 scales;
  asm volatile("ld.global.v2.u32 {%0,%1}, [%2];\n"
               : "=r"(scales.x), "=r"(scales.y)
               : "l"(__cvta_generic_to_global(address)));
  return scales;
}
// One, two or four neighbouring scales.
template <int kCount>
__device__ inline std::uint32_t load_scale_bytes(const std::byte* address) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  std::uint32_t scales = 0;
  if constexpr (kCount == 1) {
    asm volatile("ld.global.u8 %0, [%1];\n" : "=r"(scales) : "l"(__cvta_generic_to_global(address)));
  } else if constexpr (kCount == 2) {
    std::uint16_t pair = 0;
    asm volatile("ld.global.u16 %0, [%1];\n" : "=h"(pair) : "l"(__cvta_generic_to_global(address)));
    scales = pair;
  } else {
    asm volatile("ld.global.u32 %0, [%1];\n" : "=r"(scales) : "l"(__cvta_generic_to_global(address)));
  }
  return scales;
}
__device__ inline std::int32_t load_index(const std::int32_t* address) {
  std::int32_t index;
  asm volatile("ld.global.s32 %0, [%1];\n" : "=r"(index) : "l"(__cvta_generic_to_global(address)));
  return index;
}

DSV4RT_PREDICATED_LOADS(load_if, "ld.global")

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
    values[i] = multiply_pairs((pair * 16) & 0x87f087f0u, factor);
  }
  out[0] = make_uint4(values[0], values[1], values[2], values[3]);
  out[1] = make_uint4(values[4], values[5], values[6], values[7]);
}

// 2^(scale - 7), twice. Scales above 2^7 do not fit: their rows are corrected afterwards.
inline constexpr std::uint32_t kGreatestFactor = 134;
__device__ inline std::uint32_t e4m3_factor(std::uint32_t scale) {
  return (min(scale, kGreatestFactor) + 120) * 0x00800080u;
}

// Where the block of a compressed row of a sequence is found, and the row's slot in that block; blocks have a power of
// two rows.
__device__ inline const std::int32_t* block_entry(const AttendParams& p, std::int32_t slot, std::int32_t row) {
  const int shift = __ffs(p.rows.shape.rows) - 1;
  return p.rows.block_table + slot * p.rows.table_stride + (row >> shift);
}
__device__ inline RowSlot row_in_block(const AttendParams& p, std::uint32_t block, std::int32_t row) {
  const int shift = __ffs(p.rows.shape.rows) - 1;
  return (block << shift) | static_cast<std::uint32_t>(row & (p.rows.shape.rows - 1));
}
// Both.
__device__ inline RowSlot row_slot(const AttendParams& p, std::int32_t slot, std::int32_t row) {
  return row_in_block(p, static_cast<std::uint32_t>(load_index(block_entry(p, slot, row))), row);
}

// And of a window row.
__device__ inline RowSlot window_slot(const AttendParams& p, const TokenPosition& place, std::int32_t position) {
  return position >= place.start ? kStagedRow | static_cast<RowSlot>(place.token_of(position))
                                 : static_cast<RowSlot>(position % p.ring.shape.rows);
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
inline constexpr int kLineBytes = 128;
static_assert(Fp8DsMlaRow::kDataBytes == 4 * kLineBytes + 64);
__device__ inline void prefetch_line(const std::byte* line) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(__cvta_generic_to_global(line)));
}
// Starts to bring the lines of a row to the level-2 cache, by four threads: the data starts at a multiple of 64 bytes
// and lies in five, the scales lie in another one. The copy engine would take 70 clocks a row instead.
__device__ inline void prefetch_quarter_row(const RowSource& source, int quarter) {
  prefetch_line(source.data + quarter * kLineBytes);
  if (quarter == 0) prefetch_line(source.data + 4 * kLineBytes);
  if (quarter == 1) prefetch_line(source.scales);
}
__device__ inline void store_atom(std::byte* slot, int atom, int row, int unit, const uint4& first,
                                  const uint4& second) {
  std::byte* to = slot + atom * kAtomBytes;
  *reinterpret_cast<uint4*>(to + atom_offset(row, 2 * unit)) = first;
  *reinterpret_cast<uint4*>(to + atom_offset(row, 2 * unit + 1)) = second;
}
// Scale of a row's group of 64 values.
__device__ inline std::uint32_t scale_of(const uint2& scales, int atom) {
  return (atom < 4 ? scales.x : scales.y) >> (8 * (atom % 4)) & 0xffu;
}
// What products that were made with kGreatestFactor lack, twice: 2^(scale - kGreatestFactor).
__device__ inline std::uint32_t missing_factor(std::uint32_t scale) {
  return scale == 255 ? 0x7fc07fc0u : (scale - kGreatestFactor + 127) * 0x00800080u;
}
__device__ inline void correct_atom(std::byte* slot, int atom, int row, int unit, std::uint32_t scale) {
  const std::uint32_t rest = missing_factor(scale);
#pragma unroll 1
  for (int i = 0; i < 8; ++i) {
    auto* pair =
        reinterpret_cast<std::uint32_t*>(slot + atom * kAtomBytes + atom_offset(row, 2 * unit + i / 4)) + i % 4;
    *pair = multiply_pairs(*pair, rest);
  }
}
__device__ inline void correct_row(std::byte* slot, int row, int unit, const uint2& scales, int begin = 0,
                                   int end = kAtoms - 1) {
#pragma unroll 1
  for (int atom = begin; atom < end; ++atom) {
    if (scale_of(scales, atom) > kGreatestFactor) correct_atom(slot, atom, row, unit, scale_of(scales, atom));
  }
}

// A thread's units of a row's codes, in registers.
struct LoadedCodes {
  uint4 raw[kAtoms - 1];
  uint2 scales;

  __device__ void load(const RowSource& source, int unit) {
    scales = load_scales(source.scales);
    const std::byte* from = source.data + unit * kUnitBytes;
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) raw[atom] = load_unit(from + atom * kAtomValues);
  }
  // The same, before the kernels in front have ended if the row is `known` by then. between(): waits for them.
  template <class Between>
  __device__ void load_around(bool known, const RowSource& source, int unit, const Between& between) {
    const std::byte* from = source.data + unit * kUnitBytes;
    load_early_if(known, source.scales, scales);
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) load_early_if(known, from + atom * kAtomValues, raw[atom]);
    between();
    load_if(!known, source.scales, scales);
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) load_if(!known, from + atom * kAtomValues, raw[atom]);
  }
  // To row `row` of the atoms in `slot`; zeros if it does not exist.
  __device__ void decode(bool exists, std::byte* slot, int row, int unit) const {
    const std::uint32_t present = exists ? 0xffffffffu : 0;
    const uint2 own = exists ? scales : uint2{};
    std::uint32_t greatest = 0;
#pragma unroll
    for (int atom = 0; atom < kAtoms - 1; ++atom) {
      const std::uint32_t scale = scale_of(own, atom);
      greatest = max(greatest, scale);
      uint4 values[2];
      decode_e4m3_unit_by_bits(raw[atom], e4m3_factor(scale) & present, values);
      store_atom(slot, atom, row, unit, values[0], values[1]);
    }
    if (greatest > kGreatestFactor) correct_row(slot, row, unit, own);
  }
  // The same, and as soon as registers are free, they take the units of the row at `next`, if there are `more`.
  __device__ void decode_and_load(bool exists, std::byte* slot, int row, int unit, const RowSource& next, bool more) {
    const uint2 own = exists ? scales : uint2{};
    load_if(more, next.scales, scales);
    decode_and_load_atoms<0, kAtoms - 1>(exists, own, slot, row, unit, next, more);
  }
  // Atoms [kBegin, kEnd) of it, with the row's scales in `own`, zeros if it does not exist.
  template <int kBegin, int kEnd>
  __device__ void decode_and_load_atoms(bool exists, const uint2& own, std::byte* slot, int row, int unit,
                                        const RowSource& next, bool more) {
    const std::uint32_t present = exists ? 0xffffffffu : 0;
    const std::byte* from = next.data + unit * kUnitBytes;
    std::uint32_t greatest = 0;
#pragma unroll
    for (int atom = kBegin; atom < kEnd; ++atom) {
      const std::uint32_t scale = scale_of(own, atom);
      greatest = max(greatest, scale);
      uint4 values[2];
      decode_e4m3_unit_by_bits(raw[atom], e4m3_factor(scale) & present, values);
      load_if(more, from + atom * kAtomValues, raw[atom]);
      store_atom(slot, atom, row, unit, values[0], values[1]);
      __syncwarp();  // otherwise the compiler moves all loads behind the last atom
    }
    if (greatest > kGreatestFactor) correct_row(slot, row, unit, own, kBegin, kEnd);
  }
};

// And of its rotated values.
struct LoadedRow {
  LoadedCodes codes;
  uint4 rope[2];

  __device__ void load(const RowSource& source, int unit) {
    codes.load(source, unit);
    const std::byte* from = source.data + Fp8DsMlaRow::kRopeOffset + 2 * unit * kUnitBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) rope[i] = load_unit(from + i * kUnitBytes);
  }
};

// Rotated values need no decoding: from global to shared memory. Of a row that does not exist they are zero.
__device__ inline void copy_rope_units(const std::byte* data, bool exists, std::byte* slot, int row, int unit) {
  const std::uint32_t atom = shared_address(slot) + (kAtoms - 1) * kAtomBytes;
  const std::byte* from = data + Fp8DsMlaRow::kRopeOffset + 2 * unit * kUnitBytes;
  copy_unit(atom + atom_offset(row, 2 * unit), from, exists);
  copy_unit(atom + atom_offset(row, 2 * unit + 1), from + kUnitBytes, exists);
}

}  // namespace dsv4rt::cuda
