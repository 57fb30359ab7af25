// One matrix product of cuBLASLt: y[T, N] = x[T, K] * W^T for a shape, with the algorithm its heuristics choose.
//
// cuBLASLt counts columns first: W is its A [K, N] transposed, x its B [K, T], y its D [N, T].
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "backend/cuda/device/cublaslt_handles.h"
#include "backend/ops.h"
#include "checkpoint/host_linear.h"

namespace dsv4rt::cuda {

struct ProductShape {
  std::int64_t outputs = 0;                         // N
  std::int64_t inputs = 0;                          // K
  std::int32_t tokens = 0;                          // T
  WeightEncoding operands = WeightEncoding::kBf16;  // encoding of both operands
  OutputType output = OutputType::kBf16;
  std::int64_t x_stride = 0;
  std::int64_t y_stride = 0;

  auto operator<=>(const ProductShape&) const = default;
};

// Device memory of one product. x, y and the scales are 16-byte aligned.
struct ProductOperands {
  const void* weight = nullptr;  // [N, K], 256-byte aligned
  const void* x = nullptr;       // [T, K], rows x_stride apart
  void* y = nullptr;             // [T, N], rows y_stride apart
  // FP8, FP32: of the weight [ceil(N / 128)][product_scale_stride(K)], of x [K / 128][T]; T is a multiple of 4.
  // NVFP4, E4M3: of [N, K / 16] and [T, K / 16] in tiles (nvfp4_scale_tiles.h); K is a multiple of 32.
  const void* weight_scales = nullptr;
  const void* x_scales = nullptr;
  float global_scale = 1.0F;       // y is multiplied by it
  std::byte* workspace = nullptr;  // kProductWorkspaceBytes, 256-byte aligned
};

// What NVIDIA recommends for Hopper.
inline constexpr std::int64_t kProductWorkspaceBytes = std::int64_t{32} << 20;

// Scales from one row of 128x128 weight blocks to the next: the blocks of a row, rounded up to 4.
constexpr std::int64_t product_scale_stride(std::int64_t inputs) {
  return (inputs / 128 + 3) / 4 * 4;
}

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
