// Loads from global memory into registers that keep their values if there is nothing to load. Volatile: the compiler
// leaves them where they are in the source, so that loads are under way while other work is done.
#pragma once

#include <cstddef>
#include <cstdint>

// Defines NAME(exists, address, value) for values of four, eight and sixteen bytes; LOAD is the instruction without its
// width.
#define DSV4RT_PREDICATED_LOADS(NAME, LOAD)                                                              \
  __device__ inline void NAME(bool exists, const std::byte* address, uint4& value) {                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p " LOAD ".v4.u32 {%0,%1,%2,%3}, [%4];\n}\n" \
                 : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)                            \
                 : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int>(exists)));               \
  }                                                                                                      \
  __device__ inline void NAME(bool exists, const std::byte* address, uint2& value) {                     \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p " LOAD ".v2.u32 {%0,%1}, [%2];\n}\n"       \
                 : "+r"(value.x), "+r"(value.y)                                                          \
                 : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int>(exists)));               \
  }                                                                                                      \
  __device__ inline void NAME(bool exists, const std::byte* address, std::uint32_t& value) {             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p " LOAD ".u32 %0, [%1];\n}\n"               \
                 : "+r"(value)                                                                           \
                 : "l"(__cvta_generic_to_global(address)), "r"(static_cast<int>(exists)));               \
  }
