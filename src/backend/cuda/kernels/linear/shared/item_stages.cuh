// Where a thread that keeps a ring of stages full is in its items, and how it fills the ring.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/linear/shared/items.cuh"
#include "backend/cuda/kernels/linear/shared/linear_params.h"

namespace dsv4rt::cuda {

// The stages that a block fetches, item after item. To go on takes a few instructions: the warps that multiply wait for
// every one more of this thread.
struct ItemStages {
  int round = 0;
  int left = 0;                        // stages in a row, this one included; 0 after the last item
  const std::byte* weights = nullptr;  // the next stage, in the block's first row tile
  std::uint32_t second_tile = 0;       // bytes from there to the second row tile
  std::uint32_t tile_bytes = 0;
  int tiles = 0;  // row tiles of the block that the problem has
  const CUtensorMap* inputs = nullptr;
  int column = 0;
  int token = 0;  // the first that this block fetches

  // Goes on to the next stage of those in a row; false behind their last one.
  __device__ __forceinline__ bool next_stage() {
    weights += tile_bytes;
    column += kStageInputs;
    return --left > 0;
  }
};

// The thread of a producer goes from stage to stage: next(at) to the one behind `at`; load_weights(at, slot), which
// announces inputs too, and load_inputs(at, slot) bring one to a slot of the ring.

// Asks for the inputs of the first `filled` stages, whose weights are under way, and for what else has a place at once.
template <class Producer, class Stages>
__device__ __forceinline__ void fill_ring(const Producer& producer, Stages& at, int filled) {
  for (int i = 0; i < filled; ++i, producer.next(at)) producer.load_inputs(at, i);
  for (int i = filled; at.left > 0 && i < producer.p.stages; ++i, producer.next(at)) {
    producer.load_weights(at, i);
    producer.load_inputs(at, i);
  }
}

// Asks for each further stage when a slot has been read. `ring`: at its beginning.
template <class Producer, class Stages>
__device__ __forceinline__ void refill_ring(const Producer& producer, Stages& at, Ring& ring) {
  while (at.left > 0) {
    barrier_wait(producer.m.empty + ring.stage * 8, ring.parity);
    producer.load_weights(at, ring.stage);
    producer.load_inputs(at, ring.stage);
    producer.next(at);
    ring.advance(producer.p.stages);
  }
}

}  // namespace dsv4rt::cuda
