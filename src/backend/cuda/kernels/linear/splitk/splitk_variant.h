// The compiled variants of the split-K kernel, as the host sees them.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "backend/cuda/kernels/linear/shared/ring_blocks.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

struct SplitKVariant {
  int tokens;     // of an item
  int groups;     // segments of a block
  int row_tiles;  // of a block
  int most_blocks_per_sm;
  int box_bytes;    // of a stage's inputs
  int sum_bytes;    // of a segment; they take the place of its ring
  int other_bytes;  // of a block, besides the rings
  // Asked of the driver once; the same on every device of a process.
  const Result<RingDevice>& (*device)();
  // p.items clusters of p.segments / groups blocks.
  Status (*launch)(const LinearParams& p, int shared_bytes, cudaStream_t stream);
};

// Instantiated for 16, 32 and 64 tokens, 1, 2 and 4 groups: segment_<tokens>x<groups>.cu.
template <int kTokens, int kGroups, int kRows = 1>
const SplitKVariant& splitk_variant();

}  // namespace dsv4rt::cuda
