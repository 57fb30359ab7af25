// 64 keys against 64 query heads over 16 dims: wgmma with the keys in registers and the queries in shared
// memory. Fragments and the accumulator's order: common/wgmma.cuh.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kTileHeads = 64;  // columns of the instruction

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
#define DSV4RT_INDEX_MMA(TYPE)                                                                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                      \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " "                                   \
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                         \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "               \
               "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"                                                     \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),             \
                 "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),         \
                 "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),      \
                 "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),      \
                 "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                              \
               : "r"(keys[0]), "r"(keys[1]), "r"(keys[2]), "r"(keys[3]), "l"(queries), "r"(static_cast<int>(add)))
// clang-format on

// d = keys * queries, or d += where `add`.
template <bool kF16>
__device__ inline void index_mma(float (&d)[32], const std::uint32_t (&keys)[4], std::uint64_t queries, bool add) {
  if constexpr (kF16) {
    DSV4RT_INDEX_MMA("f16");
  } else {
    DSV4RT_INDEX_MMA("bf16");
  }
}

#undef DSV4RT_INDEX_MMA

#endif  // sm_90a

}  // namespace dsv4rt::cuda
