// BF16 tiles in shared memory and the tensor-core instructions that read them.
//
// A tile row is kUnits units of 16 bytes (8 values). Unit u of row r lies at unit u ^ (r % 8) of its row:
// the eight rows that one ldmatrix phase reads then touch all 32 banks once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

inline constexpr int kUnitBytes = 16;
inline constexpr int kUnitValues = 8;

// Byte offset of a unit in a tile of rows of kUnits units (a multiple of 8).
template <int kUnits>
__device__ inline int tile_offset(int row, int unit) {
  static_assert(kUnits % 8 == 0);
  return (row * kUnits + (unit ^ (row & 7))) * kUnitBytes;
}

// Starts a copy of 16 bytes from global to shared memory, of zeros when not `present`; `source` is a valid
// address either way. wait_for_copies() completes the thread's own copies, a barrier shows them to others.
__device__ inline void copy_unit(std::uint32_t target, const void* source, bool present) {
  const int bytes = present ? kUnitBytes : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
               :
               : "r"(target), "l"(__cvta_generic_to_global(source)), "r"(bytes)
               : "memory");
}
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}
// The thread's copies since the last call form a group; waits until all groups but the kPending last have come.
__device__ inline void commit_copy_group() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kPending>
__device__ inline void wait_copy_groups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of BF16; lane i names row i % 8 of matrix i / 8.
__device__ inline void load_matrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// d += a * b: m16n8k16, BF16 operands, FP32 accumulation. Lane l holds d[0..1] at row l / 4, columns
// 2 * (l % 4) + {0, 1}, and d[2..3] eight rows below.
__device__ inline void mma_16x8x16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace dsv4rt::cuda
