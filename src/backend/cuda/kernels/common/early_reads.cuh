// What a kernel may read before wait_for_predecessors(): what no kernel of its step writes.
//
// Kernels let the next one start while they still run, or still wait themselves. So before its wait a kernel may find
// every other kernel of the step under way, or not begun. Nonetheless these have been there since before the step's
// first kernel, and stay:
//
//  * the step's metadata and the block tables;
//  * compressed rows of blocks of tokens that end before the sequence's first token of the step, of which there are
//    blocks_before_step(). Others may be written in the step: by its tokens, wherever in the step and on whatever rank
//    they are (where rows are dealt out a kernel sees some of them, but the whole step's first token), and again after
//    tokens were rejected;
//  * window rows of the ring that the step's tokens read, of positions before that token: a ring takes rows of the step
//    in write_kv only if it keeps all of those (ring_keeps_needed_rows), otherwise after attention.
//
// Why they are there: metadata comes by a copy, which neither begins before all earlier work of the stream has ended
// nor lets later work begin before its own end. So it parts steps from each other, and what moves rows, rings and
// tables between steps (forks, prefixes, snapshots) from the next one. Behind it come only the kernels that shift
// positions, write to tables and copy blocks. They do not allow dependents, so the next kernel starts when all of their
// threads have ended, and each that wrote ends with publish_to_early_readers(). A graph begins behind all of this.
//
// Such reads bypass the first-level cache: bytes beside them may be written in the step (scales of several rows share
// 32 bytes), and must not be found there later as they were.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/predicated_load.cuh"

namespace dsv4rt::cuda {

// Blocks of `ratio` tokens of the sequence that steps before this one have completed.
__device__ inline std::int32_t blocks_before_step(std::int32_t start, std::int32_t ratio) {
  return start / ratio;
}

// Last in every thread of a kernel between a step's upload and its layers: what it wrote is where all multiprocessors
// read it, although kernels behind the next one do not wait for it.
__device__ inline void publish_to_early_readers() {
  __threadfence();
}

__device__ inline std::int32_t load_early(const std::int32_t* address) {
  std::int32_t value;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];\n" : "=r"(value) : "l"(__cvta_generic_to_global(address)));
  return value;
}
DSV4RT_PREDICATED_LOADS(load_early_if, "ld.relaxed.gpu.global")

}  // namespace dsv4rt::cuda
