// cuBLASLt, loaded when it is asked for: nothing else of the library needs it, and it is half a gigabyte.
#pragma once

#include <cublasLt.h>

#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// The functions in use, under their own names.
struct CublasLt {
  decltype(&::cublasLtGetVersion) cublasLtGetVersion = nullptr;
  decltype(&::cublasLtGetStatusName) cublasLtGetStatusName = nullptr;
  decltype(&::cublasLtGetStatusString) cublasLtGetStatusString = nullptr;
  decltype(&::cublasLtCreate) cublasLtCreate = nullptr;
  decltype(&::cublasLtDestroy) cublasLtDestroy = nullptr;
  decltype(&::cublasLtMatmulDescCreate) cublasLtMatmulDescCreate = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) cublasLtMatmulDescDestroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) cublasLtMatmulDescSetAttribute = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) cublasLtMatrixLayoutCreate = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) cublasLtMatrixLayoutDestroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) cublasLtMatmulPreferenceCreate = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) cublasLtMatmulPreferenceDestroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) cublasLtMatmulPreferenceSetAttribute = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) cublasLtMatmulAlgoGetHeuristic = nullptr;
  decltype(&::cublasLtMatmul) cublasLtMatmul = nullptr;
};

// The library of the toolkit that this was compiled with; it stays loaded. kUnsupported when the loader does not
// find it or it lacks a function. Needs no GPU.
Result<CublasLt> load_cublaslt();

// kResourceExhausted, kUnsupported, kInternal (a call that it refused) or kFaulted (what may have failed on the device)
// with the call's source text and place, and what the library says.
Status cublaslt_failure(const CublasLt& lt, cublasStatus_t status, const char* call, const char* file, int line);

}  // namespace dsv4rt::cuda

// Calls function(arguments) of a CublasLt; returns from the enclosing function, which returns Status or Result, when
// it fails.
#define DSV4RT_CUBLASLT_TRY(lt, function, ...)                                                                      \
  do {                                                                                                              \
    if (const cublasStatus_t lt_status = (lt).function(__VA_ARGS__); lt_status != CUBLAS_STATUS_SUCCESS) {          \
      return ::dsv4rt::cuda::cublaslt_failure((lt), lt_status, #function "(" #__VA_ARGS__ ")", __FILE__, __LINE__); \
    }                                                                                                               \
  } while (false)
