// Owners of cuBLASLt objects. Each is movable and destroys what it holds; the CublasLt outlives none of them, since
// the library stays loaded.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "backend/cuda/device/cublaslt_library.h"

namespace dsv4rt::cuda {

template <class Handle>
struct CublasLtDestroy {
  cublasStatus_t (*destroy)(Handle) = nullptr;
  // What failed on the device has been reported where it arose.
  void operator()(Handle handle) const noexcept { static_cast<void>(destroy(handle)); }
};

template <class Handle>
using CublasLtOwner = std::unique_ptr<std::remove_pointer_t<Handle>, CublasLtDestroy<Handle>>;

using CublasLtHandle = CublasLtOwner<cublasLtHandle_t>;
using MatmulDescriptor = CublasLtOwner<cublasLtMatmulDesc_t>;
using MatrixLayout = CublasLtOwner<cublasLtMatrixLayout_t>;
using MatmulPreference = CublasLtOwner<cublasLtMatmulPreference_t>;

// The handle belongs to the calling thread's current device.
inline Result<CublasLtHandle> create_cublaslt_handle(const CublasLt& lt) {
  cublasLtHandle_t handle = nullptr;
  DSV4RT_CUBLASLT_TRY(lt, cublasLtCreate, &handle);
  return CublasLtHandle(handle, {lt.cublasLtDestroy});
}

// FP32 accumulation, scales and alpha.
inline Result<MatmulDescriptor> create_matmul_descriptor(const CublasLt& lt) {
  cublasLtMatmulDesc_t descriptor = nullptr;
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmulDescCreate, &descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  return MatmulDescriptor(descriptor, {lt.cublasLtMatmulDescDestroy});
}

template <class Value>
Status set_attribute(const CublasLt& lt, const MatmulDescriptor& descriptor, cublasLtMatmulDescAttributes_t attribute,
                     const Value& value) {
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmulDescSetAttribute, descriptor.get(), attribute, &value, sizeof(value));
  return {};
}

// Column-major, as cuBLASLt counts: `columns` columns of `rows` values, `stride` values apart.
inline Result<MatrixLayout> create_matrix_layout(const CublasLt& lt, cudaDataType_t type, std::int64_t rows,
                                                 std::int64_t columns, std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatrixLayoutCreate, &layout, type, static_cast<std::uint64_t>(rows),
                      static_cast<std::uint64_t>(columns), stride);
  return MatrixLayout(layout, {lt.cublasLtMatrixLayoutDestroy});
}

inline Result<MatmulPreference> create_matmul_preference(const CublasLt& lt, std::size_t workspace_bytes) {
  cublasLtMatmulPreference_t created = nullptr;
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmulPreferenceCreate, &created);
  MatmulPreference preference(created, {lt.cublasLtMatmulPreferenceDestroy});
  DSV4RT_CUBLASLT_TRY(lt, cublasLtMatmulPreferenceSetAttribute, created, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                      &workspace_bytes, sizeof(workspace_bytes));
  return Result<MatmulPreference>(std::move(preference));
}

}  // namespace dsv4rt::cuda
