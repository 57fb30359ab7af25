// One variant of the split-K kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/splitk/splitk_kernel.cuh"
#include "backend/cuda/kernels/linear/splitk/splitk_variant.h"

namespace dsv4rt::cuda {

template <int kTokens, int kGroups, int kRows>
const Result<RingDevice>& splitk_device() {
  static const Result<RingDevice> device =
      prepare_ring_kernel(reinterpret_cast<const void*>(linear_splitk_kernel<kTokens, kGroups, kRows>));
  return device;
}

template <int kTokens, int kGroups, int kRows>
Status launch_splitk_kernel(const LinearParams& p, int shared_bytes, cudaStream_t stream) {
  return launch_pdl(linear_splitk_kernel<kTokens, kGroups, kRows>,
                    {.grid = dim3(static_cast<unsigned>(p.items * (p.segments / kGroups))),
                     .threads = SplitKShape<kTokens, kGroups, kRows>::kThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(p.segments / kGroups)},
                    stream, p);
}

template <int kTokens, int kGroups, int kRows>
const SplitKVariant& splitk_variant() {
  using Shape = SplitKShape<kTokens, kGroups, kRows>;
  static const SplitKVariant variant{.tokens = kTokens,
                                     .groups = kGroups,
                                     .row_tiles = kRows,
                                     .most_blocks_per_sm = Shape::kBlocksPerSm,
                                     .box_bytes = kSplitKBoxBytes<kTokens>,
                                     .sum_bytes = Shape::kRingSumBytes,
                                     .other_bytes = Shape::kBarrierBytes,
                                     .device = &splitk_device<kTokens, kGroups, kRows>,
                                     .launch = &launch_splitk_kernel<kTokens, kGroups, kRows>};
  return variant;
}

}  // namespace dsv4rt::cuda
