// Query heads of a token on their way to shared memory.
#pragma once

#include <cstdint>
#include <cuda.h>

#include "backend/cuda/kernels/attend/swizzle_atoms.cuh"
#include "backend/cuda/kernels/common/async_copy.cuh"
#include "backend/cuda/kernels/common/shared_address.cuh"

namespace dsv4rt::cuda {

// Starts the copy of 64 query heads to atoms, by one thread. Rows beyond the token's heads are other tokens' or zero;
// nobody looks at what becomes of them.
template <class Shared>
__device__ inline void copy_queries(const CUtensorMap& queries, int row, Shared& shared) {
  const std::uint32_t full = shared_address(&shared.q_full);
  barrier_arrive_expect(full, sizeof(shared.q));
#pragma unroll 1
  for (int atom = 0; atom < kAtoms; ++atom) {
    copy_box(shared_address(shared.q) + atom * kAtomBytes, &queries, atom * kAtomValues, row, full);
  }
}

}  // namespace dsv4rt::cuda
