// Launch of the selection.
#include <algorithm>
#include <cstdint>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/select_rows/top_k_kernel.cuh"
#include "backend/cuda/kernels/select_rows/stages.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {

Status launch_top_k(const SelectRowsParams& p, const ScoreBatch& batch, cudaStream_t stream) {
  DSV4RT_CUDA_TRY(
      cudaFuncSetAttribute(top_k_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(TopKShared)));
  top_k_rows_kernel<<<static_cast<unsigned>(batch.tokens), kTopKThreads, sizeof(TopKShared), stream>>>(p, batch);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
