#include "backend/cuda/device/tensor_map.h"

#include <atomic>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <string>

namespace dsv4rt::cuda {
namespace {

// The driver's function, which is one for the process and all devices; null until it is found.
std::atomic<PFN_cuTensorMapEncodeTiled_v12000> found_encoder = nullptr;

// A function of the driver's library, which the process has loaded but is not linked against.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found) !=
          cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    static_cast<void>(cudaGetLastError());
    return nullptr;
  }
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

Status encode_row_map(const RowMap& rows, CUtensorMap& map) {
  PFN_cuTensorMapEncodeTiled_v12000 encode = found_encoder.load(std::memory_order_relaxed);
  if (encode == nullptr) {
    encode = find_encoder();
    found_encoder.store(encode, std::memory_order_relaxed);
  }
  if (encode == nullptr) return {StatusCode::kUnsupported, "the CUDA driver offers no cuTensorMapEncodeTiled"};
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(rows.columns), static_cast<cuuint64_t>(rows.rows),
                               static_cast<cuuint64_t>(rows.matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(rows.row_bytes),
                                 static_cast<cuuint64_t>(rows.row_bytes * rows.rows)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(rows.box_columns), static_cast<cuuint32_t>(rows.box_rows), 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  const CUresult result =
      encode(&map, rows.value_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
             rows.matrices > 0 ? 3 : 2, const_cast<void*>(rows.data), sizes, strides, box, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {StatusCode::kInvalidArgument, "tensor map of [" + std::to_string(rows.rows) + ", " +
                                            std::to_string(rows.columns) + "] rows " + std::to_string(rows.row_bytes) +
                                            " B apart: CUDA error " + std::to_string(static_cast<int>(result))};
}

}  // namespace dsv4rt::cuda
