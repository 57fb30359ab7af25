// 64 keys against 64 query heads over 32 bytes of dims, 16 of 16-bit values or 32 of integers: wgmma with the keys in
// registers and the queries in shared memory. Fragments and the accumulator's order: common/wgmma.cuh.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kTileHeads = 64;  // columns of the instruction

// What keys and queries are to the instruction, and the sums that it gives.
enum class OperandKind : std::uint8_t { kBf16, kF16, kInteger };
template <OperandKind kKind>
using IndexProduct = std::conditional_t<kKind == OperandKind::kInteger, std::int32_t, float>;

// wgmma_tile, written so that a step is an addition to the whole: the compiler then keeps the descriptors of a
// tile that does not change in uniform registers.
__device__ inline std::uint64_t query_descriptor(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  constexpr std::uint64_t kStride = std::uint64_t{1024 >> 4} << 32;
  constexpr std::uint64_t kLeading = std::uint64_t{1} << 16;
  return kSwizzle128 | kStride | kLeading | ((address & 0x3ffffU) >> 4);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// clang-format off
#define DSV4RT_INDEX_MMA(SHAPE_AND_TYPES, SUM, SIGNS)                                                            \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                      \
               "wgmma.mma_async.sync.aligned." SHAPE_AND_TYPES " "                                               \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "               \
               "{%32, %33, %34, %35}, %36, p" SIGNS ";\n}\n"                                                      \
               : SUM(d[0]), SUM(d[1]), SUM(d[2]), SUM(d[3]), SUM(d[4]), SUM(d[5]), SUM(d[6]),             \
                 SUM(d[7]), SUM(d[8]), SUM(d[9]), SUM(d[10]), SUM(d[11]), SUM(d[12]), SUM(d[13]),         \
                 SUM(d[14]), SUM(d[15]), SUM(d[16]), SUM(d[17]), SUM(d[18]), SUM(d[19]), SUM(d[20]),      \
                 SUM(d[21]), SUM(d[22]), SUM(d[23]), SUM(d[24]), SUM(d[25]), SUM(d[26]), SUM(d[27]),      \
                 SUM(d[28]), SUM(d[29]), SUM(d[30]), SUM(d[31])                                              \
               : "r"(keys[0]), "r"(keys[1]), "r"(keys[2]), "r"(keys[3]), "l"(queries), "r"(static_cast<int>(add)))
// clang-format on

// d = keys * queries, or d += where `add`.
template <OperandKind kKind>
__device__ inline void index_mma(IndexProduct<kKind> (&d)[32], const std::uint32_t (&keys)[4], std::uint64_t queries,
                                 bool add) {
  if constexpr (kKind == OperandKind::kInteger) {
    DSV4RT_INDEX_MMA("m64n64k32.s32.s8.s8", "+r", "");
  } else if constexpr (kKind == OperandKind::kF16) {
    DSV4RT_INDEX_MMA("m64n64k16.f32.f16.f16", "+f", ", 1, 1, 0");
  } else {
    DSV4RT_INDEX_MMA("m64n64k16.f32.bf16.bf16", "+f", ", 1, 1, 0");
  }
}

#undef DSV4RT_INDEX_MMA

#endif  // sm_90a

}  // namespace dsv4rt::cuda
