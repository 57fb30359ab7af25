// The pair kernel as the host sees it.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/pair_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct PairDevice {
  int pairs = 0;         // of blocks that run at once; 0 where the device takes none
  int shared_bytes = 0;  // of a block
};

// Asked of the driver once; the same on every device of a process.
const Result<PairDevice>& pair_device();

Status launch_pairs(const PairParams& params, int pairs, int shared_bytes, cudaStream_t stream);

}  // namespace dsv4rt::cuda
