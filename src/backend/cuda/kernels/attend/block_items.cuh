// What blocks that take the items of block_plan.cuh alone do alike, whatever roles their warpgroups have.
#pragma once

#include <cstdint>

#include "backend/cuda/kernels/attend/block_plan.cuh"
#include "backend/cuda/kernels/attend/encoded_outputs.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where all threads meet when the first round is over: the item from which on there is another one, or kNoItem. As
// meet_consumers(): synccheck takes a barrier by name that the block's threads reach at two places for a mistake.
template <class Shared>
__device__ inline int end_first_round(Shared& shared) {
  barrier_arrive(shared_address(&shared.first_round));
  barrier_wait(shared_address(&shared.first_round), 0);
  return shared.first_shifted;
}

// Zeros for the outputs of a token without rows, by kBlockConsumers threads, of which this is one. Item: a token and
// its first head. kEncodes: whether outputs may be wanted encoded.
template <bool kEncodes, class Item>
__device__ inline void write_item_zeros(const AttendParams& p, const Item& item, int thread) {
  constexpr int kUnits = kHeadDim / kUnitValues;
  const int heads = min(kTileHeads, p.heads - item.first_head);
  if (kEncodes && p.encoded) {
    write_encoded_zeros(*p.encoded, p.heads, item.token, item.first_head, heads, 0, kHeadBlocks, thread,
                        kBlockConsumers);
    return;
  }
  bf16* first = p.o + (std::int64_t{item.token} * p.heads + item.first_head) * kHeadDim;
  for (int i = thread; i < heads * kUnits; i += kBlockConsumers) reinterpret_cast<uint4*>(first)[i] = uint4{};
}

#endif

}  // namespace dsv4rt::cuda
