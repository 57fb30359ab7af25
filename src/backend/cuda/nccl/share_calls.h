// The NCCL calls of a share, and which of its parts go together.
//
// Parts for every rank are broadcasts: short ones of a root as one, out of a buffer that they are packed into and taken
// out of behind it, long ones each from where it lies. Parts with readers of their own are a message to each of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>
#include <vector>

#include "backend/cuda/kernels/cache_moves/copy_regions.h"
#include "backend/cuda/nccl/nccl_library.h"
#include "dsv4rt/communicator.h"

namespace dsv4rt::cuda {

struct ShareCalls {
  std::vector<SharedPart> parts;     // what goes from rank to rank, packed or as it is
  std::vector<CopyRegion> packed;    // own parts into the buffer, before the calls
  std::vector<CopyRegion> unpacked;  // and others' out of it, behind them
};

// Of a rank. `buffer`: [size, kNcclShareBytes] of device memory; null: nothing is packed. Which parts are follows from
// lengths, roots and readers alone, so that ranks agree.
ShareCalls share_calls(std::span<const SharedPart> parts, std::int32_t rank, std::int32_t size, std::byte* buffer);

// Of so many parts a group has at most 1024 calls: NCCL takes no more than about twice as many.
constexpr std::size_t share_group_parts(std::int32_t size) {
  return size < 1024 ? 1024 / static_cast<std::size_t>(size) : 1;
}

// Enqueues the calls as one group, which is ended whichever of them fails; the first failure is what is returned.
ncclResult_t enqueue_share(const Nccl& nccl, std::span<const SharedPart> parts, std::int32_t rank, std::int32_t size,
                           ncclComm_t comm, cudaStream_t stream);

}  // namespace dsv4rt::cuda
