#include "backend/cuda/kernels/linear/library_product.h"

#include <string>

#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

std::string text_of(const ProductShape& shape) {
  return std::string(shape.fp8 ? "FP8" : "BF16") + " [" + std::to_string(shape.outputs) + ", " +
         std::to_string(shape.inputs) + "] with " + std::to_string(shape.tokens) + " tokens";
}

Status set_scales(const CublasLt& lt, const MatmulDescriptor& operation, const float* weight, const float* x) {
  DSV4RT_RETURN_IF_ERROR(set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight));
  return set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x);
}

Status set_scale_modes(const CublasLt& lt, const MatmulDescriptor& operation) {
  const std::int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  const std::int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  DSV4RT_RETURN_IF_ERROR(set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, blocks));
  return set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vectors);
}

// Pointers are promised no more than this; the default assumes 256.
Status set_alignments(const CublasLt& lt, cublasLtMatmulPreference_t preference) {
  constexpr std::uint32_t kAlignment = 16;
  for (const cublasLtMatmulPreferenceAttributes_t operand :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmulPreferenceSetAttribute, preference, operand, &kAlignment, sizeof(kAlignment));
  }
  return {};
}

}  // namespace

Result<LibraryProduct> LibraryProduct::create(const CublasLt& lt, cublasLtHandle_t handle, const ProductShape& shape,
                                              const ProductOperands& example) {
  const cudaDataType_t type = shape.fp8 ? CUDA_R_8F_E4M3 : CUDA_R_16BF;
  const cudaDataType_t output = shape.output == OutputType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
  DSV4RT_ASSIGN_OR_RETURN(MatmulDescriptor operation, create_matmul_descriptor(lt));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  DSV4RT_RETURN_IF_ERROR(set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed));
  if (shape.fp8) {
    DSV4RT_RETURN_IF_ERROR(set_scale_modes(lt, operation));
    DSV4RT_RETURN_IF_ERROR(set_scales(lt, operation, example.weight_scales, example.x_scales));
  }
  DSV4RT_ASSIGN_OR_RETURN(MatrixLayout weight,
                          create_matrix_layout(lt, type, shape.inputs, shape.outputs, shape.inputs));
  DSV4RT_ASSIGN_OR_RETURN(MatrixLayout x, create_matrix_layout(lt, type, shape.inputs, shape.tokens, shape.x_stride));
  DSV4RT_ASSIGN_OR_RETURN(MatrixLayout y,
                          create_matrix_layout(lt, output, shape.outputs, shape.tokens, shape.y_stride));
  LibraryProduct product(std::move(operation), std::move(weight), std::move(x), std::move(y));

  DSV4RT_ASSIGN_OR_RETURN(const MatmulPreference preference, create_matmul_preference(lt, kProductWorkspaceBytes));
  DSV4RT_RETURN_IF_ERROR(set_alignments(lt, preference.get()));
  cublasLtMatmulHeuristicResult_t chosen{};
  int found = 0;
  const cublasStatus_t status =
      lt.cublasLtMatmulAlgoGetHeuristic(handle, product.operation_.get(), product.weight_.get(), product.x_.get(),
                                        product.y_.get(), product.y_.get(), preference.get(), 1, &chosen, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    return Status{StatusCode::kUnsupported, "linear: cuBLASLt " + std::to_string(lt.cublasLtGetVersion()) +
                                                " has no algorithm for " + text_of(shape)};
  }
  if (status != CUBLAS_STATUS_SUCCESS) {
    return cublaslt_failure(lt, status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
  }
  product.algorithm_ = chosen.algo;
  return product;
}

Status LibraryProduct::run(const CublasLt& lt, cublasLtHandle_t handle, const ProductOperands& operands,
                           cudaStream_t stream) const {
  const float one = 1.0F;
  const float zero = 0.0F;
  if (operands.weight_scales != nullptr) {
    DSV4RT_RETURN_IF_ERROR(set_scales(lt, operation_, operands.weight_scales, operands.x_scales));
  }
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmul, handle, operation_.get(), &one, operands.weight, weight_.get(), operands.x,
                      x_.get(), &zero, operands.y, y_.get(), operands.y, y_.get(), &algorithm_, operands.workspace,
                      kProductWorkspaceBytes, stream);
  return {};
}

}  // namespace dsv4rt::cuda
