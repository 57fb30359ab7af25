// The compiled variants of the prefill kernel, as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/prefill/prefill_params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct PrefillDevice {
  int pairs = 0;         // of blocks that run at once; 0 where the device takes none
  int shared_bytes = 0;  // of a block
};

struct PrefillVariant {
  int tokens;        // of an item
  int share_tokens;  // whose inputs a block fetches for both
  int input_bytes;   // of a stage
  int other_bytes;   // of a block, besides the ring
  int (*box_tokens)(bool float_output);
  // Asked of the driver once; the same on every device of a process.
  const Result<PrefillDevice>& (*device)();
  Status (*launch)(const PrefillParams& params, int pairs, int shared_bytes, cudaStream_t stream);
};

// Instantiated for 128 and 192 tokens: pair_<tokens>.cu.
template <int kTokens>
const PrefillVariant& prefill_variant();

}  // namespace dsv4rt::cuda
