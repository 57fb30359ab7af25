// The NCCL calls of a share.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "backend/cuda/nccl/nccl_library.h"
#include "dsv4rt/communicator.h"

namespace dsv4rt::cuda {

// Enqueues them as one group: a broadcast for every part, or, where parts have readers of their own, a message to each
// of these. The group is ended whichever of its calls fails; the first failure is what is returned.
ncclResult_t enqueue_share(const Nccl& nccl, std::span<const SharedPart> parts, std::int32_t rank, std::int32_t size,
                           ncclComm_t comm, cudaStream_t stream);

}  // namespace dsv4rt::cuda
