// Linears of LinearPrecision::kNvfp4 by cuBLASLt, over weights held as rows too (packed_linear.h).
//
// Inputs are rounded to NVFP4 under the input scale of the checkpoint. cuBLASLt sums in an order that depends on the
// number of tokens; a result still depends on nothing but the step's inputs and T.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <map>
#include <memory>
#include <span>

#include "backend/cuda/kernels/linear/cublaslt/cublaslt_product.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/scratch.h"

namespace dsv4rt::cuda {

class CublasLtLinear {
 public:
  // Multiply-adds from which BF16 and FP8 products of cuBLASLt were as fast as the exact kernels on an H200, whose
  // launch serves several products at once. Those of NVFP4 were never timed.
  static constexpr std::int64_t kLeastWork = std::int64_t{1} << 32;

  // Serves the current device, whose compute capability begins with compute_major; takes products of least_work
  // multiply-adds and more. Null where the device has no NVFP4 products; kUnsupported where it may have them and the
  // toolkit's library is not installed.
  static Result<std::unique_ptr<CublasLtLinear>> create(int compute_major, std::int64_t least_work = kLeastWork);

  // What create() makes, with given functions.
  CublasLtLinear(const CublasLt& lt, CublasLtHandle handle, std::int64_t least_work)
      : lt_(lt), handle_(std::move(handle)), least_work_(least_work) {}

  // What run() takes with up to so many tokens and inputs.
  static std::int64_t scratch_bytes(std::int32_t tokens, std::int64_t inputs);

  // Whether run() computes the call: there is work enough, its weight is held as rows, and x, y and their rows are
  // 16-byte aligned.
  [[nodiscard]] bool takes(std::int32_t tokens, const LinearCall& call) const;

  // The calls that it takes, one after the other. Allocates host memory when a shape or T is new, device memory never.
  Status run(std::int32_t tokens, std::span<const LinearCall> calls, const Scratch& scratch, cudaStream_t stream);

 private:
  // Of an input that lies encoded in memory.
  Status multiply(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream);
  // Made at first use.
  Result<const CublasLtProduct*> product(const ProductShape& shape, const ProductOperands& example);

  CublasLt lt_;
  CublasLtHandle handle_;
  std::int64_t least_work_;
  std::map<ProductShape, CublasLtProduct> products_;
};

}  // namespace dsv4rt::cuda
