// One thread of a warp for work that a single one does.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

// Called by all threads of a warp; true in one of them, always the same. Copies that only such a thread starts take
// their operands from uniform registers. Behind another condition (lane == 0) the compiler writes a loop over the
// threads that may be active around every copy, and a stage of three copies takes its thread 600 clocks and more.
__device__ __forceinline__ bool elect_one() {
  std::uint32_t chosen;
  asm volatile(
      "{\n"
      ".reg .pred chosen;\n"
      "elect.sync _|chosen, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, chosen;\n"
      "}\n"
      : "=r"(chosen)::"memory");
  return chosen != 0;
}

}  // namespace dsv4rt::cuda
