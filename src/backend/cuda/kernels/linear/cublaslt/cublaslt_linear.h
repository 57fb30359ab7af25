// Linears by cuBLASLt: what `deterministic = false` runs where it is faster, over weights held as rows too
// (packed_linear.h).
//
// cuBLASLt sums in an order that depends on the number of tokens, and E4M3 operands in the tensor core with about
// 14 bits within each block of 128 inputs. For NVFP4 weights the inputs too are rounded to NVFP4, under the input
// scale of the checkpoint. A result still depends on nothing but the step's inputs and T.
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
  // Multiply-adds from which cuBLASLt is faster than the prefill kernel, whose launch serves several products at once
  // (bench_linear_gpu).
  static constexpr std::int64_t kLeastWork = std::int64_t{1} << 32;

  // Serves the current device, whose compute capability begins with compute_major; takes products of least_work
  // multiply-adds and more. kUnsupported where the toolkit's library is not installed.
  static Result<std::unique_ptr<CublasLtLinear>> create(int compute_major, std::int64_t least_work = kLeastWork);

  // What create() makes, with given functions and a decision about the weights.
  CublasLtLinear(const CublasLt& lt, CublasLtHandle handle, RowCopies row_copies, std::int64_t least_work)
      : lt_(lt), handle_(std::move(handle)), row_copies_(row_copies), least_work_(least_work) {}

  // The weights that it multiplies on its device.
  [[nodiscard]] RowCopies row_copies() const noexcept { return row_copies_; }

  // What run() takes with up to so many tokens, inputs that are rounded, and outputs.
  static std::int64_t scratch_bytes(std::int32_t tokens, std::int64_t inputs, std::int64_t outputs);

  // Whether run() computes the call: there is work enough, its weight is held as rows, and x, y and their rows are
  // 16-byte aligned.
  [[nodiscard]] bool takes(std::int32_t tokens, const LinearCall& call) const;

  // The calls that it takes, one after the other. Allocates host memory when a shape or T is new, device memory never.
  Status run(std::int32_t tokens, std::span<const LinearCall> calls, const Scratch& scratch, cudaStream_t stream);

 private:
  Status run_bf16(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream);
  // Both of an input that lies encoded in memory.
  Status run_fp8(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream);
  Status run_nvfp4(std::int32_t tokens, const LinearCall& call, std::byte* memory, cudaStream_t stream);
  Status multiply(const ProductShape& shape, const ProductOperands& operands, cudaStream_t stream);
  // Made at first use.
  Result<const CublasLtProduct*> product(const ProductShape& shape, const ProductOperands& example);

  CublasLt lt_;
  CublasLtHandle handle_;
  RowCopies row_copies_;
  std::int64_t least_work_;
  std::map<ProductShape, CublasLtProduct> products_;
};

}  // namespace dsv4rt::cuda
