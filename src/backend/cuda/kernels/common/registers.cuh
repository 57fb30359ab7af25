// Registers that the warpgroups of a block pass to each other: those that copy give up what those that compute take.
#pragma once

namespace dsv4rt::cuda {

#if defined(DSV4RT_FIXED_REGISTERS)
inline constexpr bool kFixedRegisters = true;
#else
inline constexpr bool kFixedRegisters = false;
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Called by all warps of a warpgroup; its threads have kRegisters, a multiple of 8, from here on. With
// DSV4RT_FIXED_REGISTERS they keep what they were launched with, and the compiler spills the rest: for tools that stall
// otherwise.
template <int kRegisters>
__device__ inline void give_registers() {
#if !defined(DSV4RT_FIXED_REGISTERS)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
#endif
}

// Waits until so many have been given up.
template <int kRegisters>
__device__ inline void take_registers() {
#if !defined(DSV4RT_FIXED_REGISTERS)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
#endif
}

#endif

}  // namespace dsv4rt::cuda
