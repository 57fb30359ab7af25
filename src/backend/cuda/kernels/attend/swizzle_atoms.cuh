// Operands of Hopper's matrix instructions (common/wgmma.cuh) as this kernel lays them out.
//
// An atom is [rows][64 values] BF16, a row 128 bytes, the 16-byte unit u of row r at unit u ^ (r % 8) (the hardware's
// 128-byte swizzle; atoms are 1024-byte aligned). The same atom serves as K-major operand (scores: rows are columns
// of the product, values its depth) and as MN-major operand (outputs: rows are the depth, values the columns).
#pragma once

#include <cstdint>

#include "dsv4rt/row_geometry.h"

namespace dsv4rt::cuda {

inline constexpr int kAtomValues = 64;
inline constexpr int kAtomRowBytes = 2 * kAtomValues;
inline constexpr int kTileRows = 64;  // columns of a score product
inline constexpr int kAtomBytes = kTileRows * kAtomRowBytes;
inline constexpr int kAtoms = kHeadDim / kAtomValues;
inline constexpr int kSlotBytes = kAtoms * kAtomBytes;  // a tile with all values

// Offset of 16-byte unit `unit` of row `row` in an atom.
__device__ inline int atom_offset(int row, int unit) {
  return row * kAtomRowBytes + ((unit ^ (row & 7)) * 16);
}

// Where a lane's row of four 8 x 8 fragments lies that store_fragments() writes to an atom: 16 rows from `first_row` on
// and the units 0 and 1; of the units u and u + 1, u even, at the address ^ (16 * u).
__device__ inline std::uint32_t fragment_address(std::uint32_t atom, int first_row, int lane) {
  return atom + atom_offset(first_row + lane % 16, lane / 16);
}
// Pairs of BF16 values as wgmma leaves them, of the unit's rows lane / 4 and that + 8, then of the next unit's.
__device__ inline void store_fragments(std::uint32_t address, std::uint32_t low, std::uint32_t high,
                                       std::uint32_t next_low, std::uint32_t next_high) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(low),
               "r"(high), "r"(next_low), "r"(next_high)
               : "memory");
}

// Descriptor of an operand in atoms: `leading` bytes between atoms side by side (MN-major only), eight rows
// of an atom 1024 bytes apart.
__device__ inline std::uint64_t atom_descriptor(std::uint32_t address, std::uint32_t leading) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62U;
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 >> 4U} << 32U;
  return kSwizzle128 | kEightRows | (std::uint64_t{leading >> 4U} << 16U) | ((address & 0x3ffffU) >> 4U);
}

// The same in two words: what descriptors differ in, the same for a warp and known to be, so that offsets (in units of
// 16 bytes) are added where descriptors are kept, and not in every thread's registers.
__device__ inline std::uint32_t atom_word(std::uint32_t address, std::uint32_t leading) {
  return __shfl_sync(0xffffffffu, (leading >> 4U) << 16U | (address & 0x3ffffU) >> 4U, 0);
}
__device__ inline std::uint64_t atom_descriptor(std::uint32_t word) {
  constexpr std::uint32_t kHigh = 1U << 30U | 1024U >> 4U;  // 128-byte swizzle; eight rows 1024 bytes apart
  std::uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};\n" : "=l"(descriptor) : "r"(word), "r"(kHigh));
  return descriptor;
}

}  // namespace dsv4rt::cuda
