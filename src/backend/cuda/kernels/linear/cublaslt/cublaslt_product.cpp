#include "backend/cuda/kernels/linear/cublaslt/cublaslt_product.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

std::string text_of(const ProductShape& shape) {
  return "NVFP4 [" + std::to_string(shape.outputs) + ", " + std::to_string(shape.inputs) + "] with " +
         std::to_string(shape.tokens) + " tokens";
}

Status set_scales(const CublasLt& lt, const MatmulDescriptor& operation, const void* weight, const void* x) {
  DSV4RT_RETURN_IF_ERROR(set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, weight));
  return set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, x);
}

Status set_scale_modes(const CublasLt& lt, const MatmulDescriptor& operation) {
  constexpr std::int32_t kMode = CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3;
  DSV4RT_RETURN_IF_ERROR(set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kMode));
  return set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kMode);
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

bool has_nvfp4_products(const CublasLt& lt, cublasLtHandle_t handle) {
  alignas(16) static constexpr std::byte kScales[16]{};  // never read: an address of the right alignment
  constexpr std::int64_t kSide = 4096;
  return std::ranges::all_of(std::array{OutputType::kBf16, OutputType::kF32}, [&](OutputType output) {
    const ProductShape shape{.outputs = kSide, .inputs = kSide, .tokens = kSide, .output = output, .y_stride = kSide};
    return CublasLtProduct::create(lt, handle, shape, {.weight_scales = kScales, .x_scales = kScales}).ok();
  });
}

Result<CublasLtProduct> CublasLtProduct::create(const CublasLt& lt, cublasLtHandle_t handle, const ProductShape& shape,
                                                const ProductOperands& example) {
  const cudaDataType_t output = shape.output == OutputType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
  DSV4RT_ASSIGN_OR_RETURN(MatmulDescriptor operation, create_matmul_descriptor(lt));
  const cublasOperation_t transposed = CUBLAS_OP_T;
  DSV4RT_RETURN_IF_ERROR(set_attribute(lt, operation, CUBLASLT_MATMUL_DESC_TRANSA, transposed));
  DSV4RT_RETURN_IF_ERROR(set_scale_modes(lt, operation));
  DSV4RT_RETURN_IF_ERROR(set_scales(lt, operation, example.weight_scales, example.x_scales));
  DSV4RT_ASSIGN_OR_RETURN(MatrixLayout weight,
                          create_matrix_layout(lt, CUDA_R_4F_E2M1, shape.inputs, shape.outputs, shape.inputs));
  DSV4RT_ASSIGN_OR_RETURN(MatrixLayout x,
                          create_matrix_layout(lt, CUDA_R_4F_E2M1, shape.inputs, shape.tokens, shape.inputs));
  DSV4RT_ASSIGN_OR_RETURN(MatrixLayout y,
                          create_matrix_layout(lt, output, shape.outputs, shape.tokens, shape.y_stride));
  CublasLtProduct product(std::move(operation), std::move(weight), std::move(x), std::move(y));

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

Status CublasLtProduct::run(const CublasLt& lt, cublasLtHandle_t handle, const ProductOperands& operands,
                            cudaStream_t stream) const {
  const float zero = 0.0F;
  DSV4RT_RETURN_IF_ERROR(set_scales(lt, operation_, operands.weight_scales, operands.x_scales));
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmul, handle, operation_.get(), &operands.global_scale, operands.weight,
                      weight_.get(), operands.x, x_.get(), &zero, operands.y, y_.get(), operands.y, y_.get(),
                      &algorithm_, operands.workspace, kProductWorkspaceBytes, stream);
  return {};
}

}  // namespace dsv4rt::cuda
