// wgmma on E4M3 codes: D [64 x N] (+)= A [64 x 32] * B [32 x N] a step, both operands K-major in shared memory. Tiles,
// accumulators and their order: wgmma.cuh. The instruction adds products with about 14 bits below the largest; sums of
// kE4m3Steps steps, 128 inputs, are what kernels scale and add in FP32.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/wgmma.cuh"

namespace dsv4rt::cuda {

inline constexpr int kE4m3Steps = 4;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <int kColumns>
struct WgmmaE4m3;

// clang-format off
#define DSV4RT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4RT_D8(i) DSV4RT_D4(i), DSV4RT_D4(i + 4)
#define DSV4RT_D16(i) DSV4RT_D8(i), DSV4RT_D8(i + 8)
#define DSV4RT_D32(i) DSV4RT_D16(i), DSV4RT_D16(i + 16)
#define DSV4RT_D48(i) DSV4RT_D32(i), DSV4RT_D16(i + 32)
#define DSV4RT_D64(i) DSV4RT_D32(i), DSV4RT_D32(i + 32)

#define DSV4RT_REGISTERS_4 "%0, %1, %2, %3"
#define DSV4RT_REGISTERS_8 DSV4RT_REGISTERS_4 ", %4, %5, %6, %7"
#define DSV4RT_REGISTERS_16 DSV4RT_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define DSV4RT_REGISTERS_32 DSV4RT_REGISTERS_16 ", " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DSV4RT_REGISTERS_48 DSV4RT_REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DSV4RT_REGISTERS_64 DSV4RT_REGISTERS_48 ", " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// A, B: operand numbers after the accumulators; P: whether to add to D (otherwise D is overwritten).
#define DSV4RT_WGMMA_E4M3(N, COUNT, A, B, P)                                                                 \
  template <>                                                                                                \
  struct WgmmaE4m3<N> {                                                                                      \
    __device__ static void run(float (&d)[COUNT], std::uint64_t a, std::uint64_t b, bool add) {              \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" DSV4RT_REGISTERS_##COUNT "}, " \
                   A ", " B ", p, 1, 1;\n}\n"                                                                \
                   : DSV4RT_D##COUNT(0) : "l"(a), "l"(b), "r"(static_cast<int>(add)));                       \
    }                                                                                                        \
  }

DSV4RT_WGMMA_E4M3(8, 4, "%4", "%5", "%6");
DSV4RT_WGMMA_E4M3(16, 8, "%8", "%9", "%10");
DSV4RT_WGMMA_E4M3(32, 16, "%16", "%17", "%18");
DSV4RT_WGMMA_E4M3(64, 32, "%32", "%33", "%34");
DSV4RT_WGMMA_E4M3(96, 48, "%48", "%49", "%50");
DSV4RT_WGMMA_E4M3(128, 64, "%64", "%65", "%66");

#undef DSV4RT_WGMMA_E4M3
#undef DSV4RT_REGISTERS_4
#undef DSV4RT_REGISTERS_8
#undef DSV4RT_REGISTERS_16
#undef DSV4RT_REGISTERS_32
#undef DSV4RT_REGISTERS_48
#undef DSV4RT_REGISTERS_64
#undef DSV4RT_D4
#undef DSV4RT_D8
#undef DSV4RT_D16
#undef DSV4RT_D32
#undef DSV4RT_D48
#undef DSV4RT_D64
// clang-format on

#endif  // sm_90a

}  // namespace dsv4rt::cuda
