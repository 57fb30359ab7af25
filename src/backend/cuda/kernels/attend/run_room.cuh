// Decoded rows in shared memory as operands of Hopper's matrix instructions that may start at any row.
//
// Atoms as in swizzle_atoms.cuh, but of all rows: [values / 64][rows][64 values] BF16, the 16-byte unit u of row r at
// unit u ^ (r % 8). The hardware takes the swizzle from addresses, so that an operand's first row may be any.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/common/mma_tile.cuh"

namespace dsv4rt::cuda {

template <int kRoomRows>
struct RowRoom {
  static_assert(kRoomRows % 8 == 0);
  static constexpr int kRows = kRoomRows;
  static constexpr int kAtomBytes = kRows * kAtomRowBytes;
  static constexpr int kBytes = kAtoms * kAtomBytes;

  // Of a unit of a row, in bytes.
  __device__ static int offset(int row, int atom, int unit) { return atom * kAtomBytes + atom_offset(row, unit); }

  // How far apart operands are, in units of 16 bytes, as descriptors count.
  static constexpr int kAtomUnits = kAtomBytes / kUnitBytes;
  static constexpr int kRowUnits = kAtomRowBytes / kUnitBytes;

  // Operands that begin with a row at this shared-memory address: all values of some rows, 16 rows' values.
  __device__ static std::uint64_t keys(std::uint32_t address) { return atom_descriptor(atom_word(address, 16)); }
  __device__ static std::uint64_t values(std::uint32_t address) {
    return atom_descriptor(atom_word(address, kAtomBytes));
  }
};

}  // namespace dsv4rt::cuda
