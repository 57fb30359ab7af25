// One variant of the segment kernel; a small translation unit each keeps rebuilds short.
#pragma once

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/segment_kernel.cuh"
#include "backend/cuda/kernels/linear/segment_variant.h"
#include "base/try.h"

namespace dsv4rt::cuda {

template <int kTokens, int kGroups>
Result<SegmentDevice> ask_segment_device() {
  int device = 0;
  SegmentDevice limits;
  DSV4RT_CUDA_TRY(cudaGetDevice(&device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&limits.shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device));
  DSV4RT_CUDA_TRY(
      cudaDeviceGetAttribute(&limits.reserved_shared_bytes, cudaDevAttrReservedSharedMemoryPerBlock, device));
  DSV4RT_CUDA_TRY(cudaDeviceGetAttribute(&limits.sms, cudaDevAttrMultiProcessorCount, device));
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(linear_segment_kernel<kTokens, kGroups>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       limits.shared_bytes - limits.reserved_shared_bytes));
  return limits;
}

template <int kTokens, int kGroups>
const Result<SegmentDevice>& segment_device() {
  static const Result<SegmentDevice> limits = ask_segment_device<kTokens, kGroups>();
  return limits;
}

template <int kTokens, int kGroups>
Status launch_segment_kernel(const TileParams& p, int shared_bytes, cudaStream_t stream) {
  return launch_pdl(linear_segment_kernel<kTokens, kGroups>,
                    {.grid = dim3(static_cast<unsigned>(p.items * (p.segments / kGroups))),
                     .threads = SegmentShape<kTokens, kGroups>::kThreads,
                     .shared_bytes = static_cast<std::size_t>(shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(p.segments / kGroups)},
                    stream, p);
}

}  // namespace dsv4rt::cuda

#define DSV4RT_LINEAR_SEGMENT_VARIANT(TOKENS, GROUPS)                                      \
  template <>                                                                              \
  const SegmentVariant& segment_variant<TOKENS, GROUPS>() {                                \
    using Shape = SegmentShape<TOKENS, GROUPS>;                                            \
    static const SegmentVariant variant{.tokens = TOKENS,                                  \
                                        .groups = GROUPS,                                  \
                                        .most_blocks_per_sm = Shape::kBlocksPerSm,         \
                                        .box_bytes = Shape::kBoxBytes,                     \
                                        .sum_bytes = Shape::kSumBytes,                     \
                                        .other_bytes = Shape::kBarrierBytes,               \
                                        .device = &segment_device<TOKENS, GROUPS>,         \
                                        .launch = &launch_segment_kernel<TOKENS, GROUPS>}; \
    return variant;                                                                        \
  }                                                                                        \
  static_assert(TOKENS % 8 == 0)
