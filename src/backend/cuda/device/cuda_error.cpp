#include "backend/cuda/device/cuda_error.h"

#include <string>

namespace dsv4rt::cuda {

StatusCode cuda_error_code(cudaError_t error) noexcept {
  switch (error) {
    case cudaSuccess:
      return StatusCode::kOk;
    case cudaErrorMemoryAllocation:
      return StatusCode::kResourceExhausted;
    // What a caller gave: a pointer that is not of the device, a stream of another device or one that is gone.
    case cudaErrorInvalidValue:
    case cudaErrorInvalidHostPointer:
    case cudaErrorInvalidDevicePointer:
    case cudaErrorInvalidPitchValue:
    case cudaErrorInvalidMemcpyDirection:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return StatusCode::kInvalidArgument;
    // The machine and this build do not go together.
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
    case cudaErrorStubLibrary:
    case cudaErrorNoDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidPtx:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorJitCompilerNotFound:
    case cudaErrorJitCompilationDisabled:
    case cudaErrorNotSupported:
    case cudaErrorNotPermitted:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return StatusCode::kUnsupported;
    // Misuse of a capture leaves the device as it was.
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorCapturedEvent:
    case cudaErrorStreamCaptureWrongThread:
      return StatusCode::kFailedPrecondition;
    // Calls that this library should not have made: the driver refused them and did nothing.
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidSymbol:
    case cudaErrorMissingConfiguration:
    case cudaErrorInvalidClusterSize:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorLaunchMaxDepthExceeded:
    case cudaErrorLaunchPendingCountExceeded:
    case cudaErrorCooperativeLaunchTooLarge:
    case cudaErrorHostMemoryAlreadyRegistered:
    case cudaErrorHostMemoryNotRegistered:
    case cudaErrorPeerAccessAlreadyEnabled:
    case cudaErrorPeerAccessNotEnabled:
    case cudaErrorSetOnActiveProcess:
    case cudaErrorIllegalState:
    case cudaErrorSymbolNotFound:
    case cudaErrorFunctionNotLoaded:
    case cudaErrorSharedObjectSymbolNotFound:
    case cudaErrorSharedObjectInitFailed:
    case cudaErrorFileNotFound:
    case cudaErrorNotReady:
    case cudaErrorGraphExecUpdateFailure:
    case cudaErrorInvalidResourceType:
    case cudaErrorInvalidResourceConfiguration:
      return StatusCode::kInternal;
    // A context or a device that does not come back: every later call fails too. An illegal address, a failed, timed
    // out or asserting kernel, ECC and NVLink errors, a context that is gone, a device that is lost; and every error
    // that is not named above, because nobody has said that the device survives it.
    default:
      return StatusCode::kFaulted;
  }
}

bool under_way(cudaError_t query) noexcept {
  if (query != cudaErrorNotReady) return false;
  static_cast<void>(cudaGetLastError());
  return true;
}

Status cuda_failure(cudaError_t error, const char* call, const char* file, int line) {
  const StatusCode code = cuda_error_code(error);
  // The runtime keeps the last error of a thread for cudaGetLastError, which the next launch asks. Those of a lost
  // context come back by themselves.
  if (code != StatusCode::kFaulted) static_cast<void>(cudaGetLastError());
  return {code, std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ") at " + file +
                    ":" + std::to_string(line)};
}

}  // namespace dsv4rt::cuda
