#include "backend/cuda/device/cublaslt_library.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <string>

#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Functions change between major versions only.
std::string library_name() {
  return "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
}

template <class Function>
Status find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return {};
  return {StatusCode::kUnsupported, library_name() + " has no " + name};
}

}  // namespace

Result<CublasLt> load_cublaslt() {
  void* library = ::dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return Status{StatusCode::kUnsupported, std::string("cuBLASLt of the CUDA toolkit is needed: ") +
                                                (reason != nullptr ? reason : library_name().c_str())};
  }
  CublasLt lt;
#define DSV4RT_FIND(name) DSV4RT_RETURN_IF_ERROR(find(library, #name, lt.name))
  DSV4RT_FIND(cublasLtGetVersion);
  DSV4RT_FIND(cublasLtGetStatusName);
  DSV4RT_FIND(cublasLtGetStatusString);
  DSV4RT_FIND(cublasLtCreate);
  DSV4RT_FIND(cublasLtDestroy);
  DSV4RT_FIND(cublasLtMatmulDescCreate);
  DSV4RT_FIND(cublasLtMatmulDescDestroy);
  DSV4RT_FIND(cublasLtMatmulDescSetAttribute);
  DSV4RT_FIND(cublasLtMatrixLayoutCreate);
  DSV4RT_FIND(cublasLtMatrixLayoutDestroy);
  DSV4RT_FIND(cublasLtMatmulPreferenceCreate);
  DSV4RT_FIND(cublasLtMatmulPreferenceDestroy);
  DSV4RT_FIND(cublasLtMatmulPreferenceSetAttribute);
  DSV4RT_FIND(cublasLtMatmulAlgoGetHeuristic);
  DSV4RT_FIND(cublasLtMatmul);
#undef DSV4RT_FIND
  return lt;
}

Status cublaslt_failure(const CublasLt& lt, cublasStatus_t status, const char* call, const char* file, int line) {
  StatusCode code = StatusCode::kFaulted;
  if (status == CUBLAS_STATUS_ALLOC_FAILED) code = StatusCode::kResourceExhausted;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_ARCH_MISMATCH) code = StatusCode::kUnsupported;
  // A call that should not have been made; nothing ran.
  if (status == CUBLAS_STATUS_INVALID_VALUE || status == CUBLAS_STATUS_NOT_INITIALIZED) code = StatusCode::kInternal;
  return {code, std::string(call) + ": " + lt.cublasLtGetStatusName(status) + " (" +
                    lt.cublasLtGetStatusString(status) + ") at " + file + ":" + std::to_string(line)};
}

}  // namespace dsv4rt::cuda
