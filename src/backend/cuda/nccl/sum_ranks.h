// The sum of the ranks' terms in device memory: what dist/sum_in_rank_order.h does on the host.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "dsv4rt/communicator.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// sum[i] = terms[0][i] + terms[1][i] + ... in FP32, rounded once. `terms` is [ranks, elements]; `sum` does not overlap
// it. Enqueued on the stream; the device is current. Can be captured.
Status launch_sum_ranks(const void* terms, std::int32_t ranks, ElementType terms_type, void* sum, ElementType sum_type,
                        std::int64_t elements, cudaStream_t stream);

}  // namespace dsv4rt::cuda
