// One NVFP4 product of cuBLASLt: y[T, N] = x[T, K] * W^T for a shape, with the algorithm its heuristics choose.
//
// cuBLASLt counts columns first: W is its A [K, N] transposed, x its B [K, T], y its D [N, T].
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/cuda/device/cublaslt_handles.h"
#include "backend/ops.h"

namespace dsv4rt::cuda {

struct ProductShape {
  std::int64_t outputs = 0;  // N
  std::int64_t inputs = 0;   // K, a multiple of 32
  std::int32_t tokens = 0;   // T
  OutputType output = OutputType::kBf16;
  std::int64_t y_stride = 0;

  auto operator<=>(const ProductShape&) const = default;
};

// Device memory of one product. x, y and the scales are 16-byte aligned.
struct ProductOperands {
  const void* weight = nullptr;  // E2M1 [N, K], 256-byte aligned
  const void* x = nullptr;       // E2M1 [T, K]
  void* y = nullptr;             // [T, N], rows y_stride apart
  // E4M3 of [N, K / 16] and [T, K / 16] in tiles (nvfp4_scale_tiles.h).
  const void* weight_scales = nullptr;
  const void* x_scales = nullptr;
  float global_scale = 1.0F;       // y is multiplied by it
  std::byte* workspace = nullptr;  // kProductWorkspaceBytes, 256-byte aligned
};

// What NVIDIA recommends.
inline constexpr std::int64_t kProductWorkspaceBytes = std::int64_t{32} << 20;

// Whether cuBLASLt has algorithms for NVFP4 operands on the handle's device, asked with one shape. Host only.
bool has_nvfp4_products(const CublasLt& lt, cublasLtHandle_t handle);

class CublasLtProduct {
 public:
  // Runs on the host alone; of the operands only the scales' addresses matter, as an example of their alignment.
  // kUnsupported when cuBLASLt has no algorithm for the shape.
  static Result<CublasLtProduct> create(const CublasLt& lt, cublasLtHandle_t handle, const ProductShape& shape,
                                        const ProductOperands& example);

  // Enqueues; capturable.
  Status run(const CublasLt& lt, cublasLtHandle_t handle, const ProductOperands& operands, cudaStream_t stream) const;

 private:
  CublasLtProduct(MatmulDescriptor operation, MatrixLayout weight, MatrixLayout x, MatrixLayout y)
      : operation_(std::move(operation)), weight_(std::move(weight)), x_(std::move(x)), y_(std::move(y)) {}

  MatmulDescriptor operation_;
  MatrixLayout weight_;
  MatrixLayout x_;
  MatrixLayout y_;
  cublasLtMatmulAlgo_t algorithm_{};
};

}  // namespace dsv4rt::cuda
