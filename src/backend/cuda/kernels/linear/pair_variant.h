// The compiled variants of the pair kernel, as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/pair_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct PairDevice {
  int pairs = 0;         // of blocks that run at once; 0 where the device takes none
  int shared_bytes = 0;  // of a block
};

struct PairVariant {
  int tokens;        // of an item
  int share_tokens;  // whose inputs a block fetches for both
  int input_bytes;   // of a stage
  int other_bytes;   // of a block, besides the ring
  int (*box_tokens)(bool float_output);
  // Asked of the driver once; the same on every device of a process.
  const Result<PairDevice>& (*device)();
  Status (*launch)(const PairParams& params, int pairs, int shared_bytes, cudaStream_t stream);
};

// Instantiated for 128 and 192 tokens: pair_<tokens>.cu.
template <int kTokens>
const PairVariant& pair_variant();

}  // namespace dsv4rt::cuda
