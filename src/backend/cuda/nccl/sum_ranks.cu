#include <algorithm>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/nccl/sum_ranks.h"
#include "base/bfloat16.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kMostBlocks = 4096;

__device__ float as_float(float value) {
  return value;
}
__device__ float as_float(bf16 value) {
  return to_float(value);
}
__device__ void store(float value, float* to) {
  *to = value;
}
__device__ void store(float value, bf16* to) {
  *to = to_bf16(value);
}

// One thread adds an element after the other: which thread does it changes nothing.
template <class Term, class Sum>
__global__ void __launch_bounds__(kThreads)
    sum_ranks_kernel(const Term* terms, std::int32_t ranks, Sum* sum, std::int64_t elements) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += stride) {
    float total = as_float(terms[i]);
    for (std::int32_t rank = 1; rank < ranks; ++rank) total += as_float(terms[rank * elements + i]);
    store(total, sum + i);
  }
}

template <class Term, class Sum>
void launch(const void* terms, std::int32_t ranks, void* sum, std::int64_t elements, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min((elements + kThreads - 1) / kThreads, kMostBlocks));
  sum_ranks_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const Term*>(terms), ranks, static_cast<Sum*>(sum),
                                                    elements);
}

}  // namespace

Status launch_sum_ranks(const void* terms, std::int32_t ranks, ElementType terms_type, void* sum, ElementType sum_type,
                        std::int64_t elements, cudaStream_t stream) {
  if (elements == 0) return {};
  const bool wide_sum = sum_type == ElementType::kF32;
  if (terms_type == ElementType::kF32) {
    wide_sum ? launch<float, float>(terms, ranks, sum, elements, stream)
             : launch<float, bf16>(terms, ranks, sum, elements, stream);
  } else {
    wide_sum ? launch<bf16, float>(terms, ranks, sum, elements, stream)
             : launch<bf16, bf16>(terms, ranks, sum, elements, stream);
  }
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
