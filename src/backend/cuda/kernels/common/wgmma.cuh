// wgmma: the matrix instruction of Hopper, issued by a warpgroup (128 threads) and asynchronous.
//
// D [64 x N] += A [64 x K] * B [K x N], 32 bytes of K a step (16 BF16 values), FP32 accumulation. Both
// operands are K-major: A rows and B columns are rows of 128 bytes in shared memory, in the 128-byte swizzle (unit u of
// row r lies at unit u ^ (r % 8); eight rows follow one another every 1024 bytes). A may come from registers instead.
//
// Accumulator 4 j + i of lane l in warp w: row 16 w + l / 4 + 8 (i / 2), column 8 j + 2 (l % 4) + i % 2.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

// A step of 32 bytes in a descriptor, whose address counts units of 16 bytes.
inline constexpr std::uint64_t kWgmmaStep = 2;

// Descriptor of a tile at a shared-memory address that is a multiple of 1024, `step` steps of 32 bytes into K.
__device__ inline std::uint64_t wgmma_tile(std::uint32_t address, int step = 0) {
  // Units of 16 bytes. The leading offset is unused with this swizzle (addresses of a cluster have their block's rank
  // there); the stride lies between groups of eight rows.
  const std::uint32_t low = (1U << 16) + (address >> 4) + 2U * static_cast<std::uint32_t>(step);
  constexpr std::uint32_t kHigh = (1024U >> 4) | 1U << 30;  // stride, 128-byte swizzle
  std::uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};\n" : "=l"(descriptor) : "r"(low), "r"(kHigh));
  return descriptor;
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Orders register and shared-memory accesses of the warpgroup before the next instruction's.
__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving accesses of accumulators across the asynchronous instructions.
template <int kCount>
__device__ inline void wgmma_hold(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ inline void wgmma_hold(std::int32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
// And operands in registers, which count as free as soon as the products that read them are issued: before those, and
// behind the wait for their end.
template <int kCount>
__device__ inline void wgmma_hold(uint4 (&a)[kCount]) {
#pragma unroll
  for (uint4& unit : a) asm volatile("" : "+r"(unit.x), "+r"(unit.y), "+r"(unit.z), "+r"(unit.w)::"memory");
}

template <int kTokens>
struct Wgmma;

// clang-format off
#define DSV4RT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DSV4RT_D8(i) DSV4RT_D4(i), DSV4RT_D4(i + 4)
#define DSV4RT_D16(i) DSV4RT_D8(i), DSV4RT_D8(i + 8)
#define DSV4RT_D32(i) DSV4RT_D16(i), DSV4RT_D16(i + 16)
#define DSV4RT_D40(i) DSV4RT_D32(i), DSV4RT_D8(i + 32)
#define DSV4RT_D48(i) DSV4RT_D32(i), DSV4RT_D16(i + 32)
#define DSV4RT_D56(i) DSV4RT_D48(i), DSV4RT_D8(i + 48)
#define DSV4RT_D64(i) DSV4RT_D32(i), DSV4RT_D32(i + 32)
#define DSV4RT_D80(i) DSV4RT_D64(i), DSV4RT_D16(i + 64)
#define DSV4RT_D96(i) DSV4RT_D64(i), DSV4RT_D32(i + 64)
#define DSV4RT_D128(i) DSV4RT_D96(i), DSV4RT_D32(i + 96)

#define DSV4RT_REGISTERS_4 \
  "%0, %1, %2, %3"
#define DSV4RT_REGISTERS_8 \
  "%0, %1, %2, %3, %4, %5, %6, %7"
#define DSV4RT_REGISTERS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define DSV4RT_REGISTERS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define DSV4RT_REGISTERS_40 \
  DSV4RT_REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39"
#define DSV4RT_REGISTERS_48 \
  DSV4RT_REGISTERS_32 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define DSV4RT_REGISTERS_56 \
  DSV4RT_REGISTERS_48 ", " \
  "%48, %49, %50, %51, %52, %53, %54, %55"
#define DSV4RT_REGISTERS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define DSV4RT_REGISTERS_80 \
  DSV4RT_REGISTERS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define DSV4RT_REGISTERS_96 \
  DSV4RT_REGISTERS_64 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define DSV4RT_REGISTERS_128 \
  DSV4RT_REGISTERS_96 ", " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

// A, B: operand numbers after the accumulators; P: whether to add to D (otherwise D is overwritten).
#define DSV4RT_WGMMA(N, COUNT, A, B, P, A0, A1, A2, A3, RB, RP, RT)                                           \
  template <>                                                                                                  \
  struct Wgmma<N> {                                                                                            \
    /* kTransposed: B is MN-major. */                                                                          \
    template <int kTransposed = 0>                                                                             \
    __device__ static void bf16(float (&d)[COUNT], std::uint64_t a, std::uint64_t b, bool add) {               \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " P ", 0;\n"                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" DSV4RT_REGISTERS_##COUNT "}, " \
                   A ", " B ", p, 1, 1, 0, " A3 ";\n}\n"                                                       \
                   : DSV4RT_D##COUNT(0)                                                                        \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kTransposed));                            \
    }                                                                                                          \
    /* A from registers: the A fragment of mma.m16n8k16 for the warp's 16 rows. */                             \
    template <int kTransposed = 0>                                                                             \
    __device__ static void bf16_registers(float (&d)[COUNT], const std::uint32_t* a, std::uint64_t b,          \
                                          bool add) {                                                          \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " RP ", 0;\n"                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" DSV4RT_REGISTERS_##COUNT "}, " \
                   "{" A0 ", " A1 ", " A2 ", " A3 "}, " RB ", p, 1, 1, " RT ";\n}\n"                           \
                   : DSV4RT_D##COUNT(0)                                                                        \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),           \
                     "n"(kTransposed));                                                                        \
    }                                                                                                          \
    template <int kTransposed = 0>                                                                             \
    __device__ static void bf16_registers(float (&d)[COUNT], const uint4& a, std::uint64_t b, bool add) {      \
      const std::uint32_t words[4] = {a.x, a.y, a.z, a.w};                                                     \
      bf16_registers<kTransposed>(d, words, b, add);                                                           \
    }                                                                                                          \
  }

DSV4RT_WGMMA(8, 4, "%4", "%5", "%6", "%4", "%5", "%6", "%7", "%8", "%9", "%10");
DSV4RT_WGMMA(16, 8, "%8", "%9", "%10", "%8", "%9", "%10", "%11", "%12", "%13", "%14");
DSV4RT_WGMMA(32, 16, "%16", "%17", "%18", "%16", "%17", "%18", "%19", "%20", "%21", "%22");
DSV4RT_WGMMA(64, 32, "%32", "%33", "%34", "%32", "%33", "%34", "%35", "%36", "%37", "%38");
DSV4RT_WGMMA(80, 40, "%40", "%41", "%42", "%40", "%41", "%42", "%43", "%44", "%45", "%46");
DSV4RT_WGMMA(96, 48, "%48", "%49", "%50", "%48", "%49", "%50", "%51", "%52", "%53", "%54");
DSV4RT_WGMMA(112, 56, "%56", "%57", "%58", "%56", "%57", "%58", "%59", "%60", "%61", "%62");
DSV4RT_WGMMA(128, 64, "%64", "%65", "%66", "%64", "%65", "%66", "%67", "%68", "%69", "%70");
DSV4RT_WGMMA(160, 80, "%80", "%81", "%82", "%80", "%81", "%82", "%83", "%84", "%85", "%86");
DSV4RT_WGMMA(192, 96, "%96", "%97", "%98", "%96", "%97", "%98", "%99", "%100", "%101", "%102");
DSV4RT_WGMMA(256, 128, "%128", "%129", "%130", "%128", "%129", "%130", "%131", "%132", "%133", "%134");

#undef DSV4RT_WGMMA
#undef DSV4RT_REGISTERS_4
#undef DSV4RT_REGISTERS_8
#undef DSV4RT_REGISTERS_16
#undef DSV4RT_REGISTERS_32
#undef DSV4RT_REGISTERS_64
#undef DSV4RT_REGISTERS_40
#undef DSV4RT_REGISTERS_48
#undef DSV4RT_REGISTERS_56
#undef DSV4RT_REGISTERS_80
#undef DSV4RT_REGISTERS_96
#undef DSV4RT_REGISTERS_128
#undef DSV4RT_D4
#undef DSV4RT_D8
#undef DSV4RT_D16
#undef DSV4RT_D32
#undef DSV4RT_D64
#undef DSV4RT_D40
#undef DSV4RT_D48
#undef DSV4RT_D56
#undef DSV4RT_D80
#undef DSV4RT_D96
#undef DSV4RT_D128
// clang-format on

#endif  // sm_90a

}  // namespace dsv4rt::cuda
