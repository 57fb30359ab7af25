// Checks which errors of the CUDA runtime latch an engine, and which leave it as it was.
#include "backend/cuda/device/cuda_error.h"

#include <gtest/gtest.h>

namespace dsv4rt::test {
namespace {

using cuda::cuda_error_code;

TEST(CudaError, WhatHarmsTheContextFaults) {
  for (const cudaError_t error :
       {cudaErrorIllegalAddress, cudaErrorLaunchTimeout, cudaErrorHardwareStackError, cudaErrorIllegalInstruction,
        cudaErrorMisalignedAddress, cudaErrorInvalidAddressSpace, cudaErrorInvalidPc, cudaErrorLaunchFailure,
        cudaErrorAssert, cudaErrorECCUncorrectable, cudaErrorNvlinkUncorrectable, cudaErrorContextIsDestroyed,
        cudaErrorExternalDevice, cudaErrorMpsRpcFailure, cudaErrorMpsClientTerminated, cudaErrorTimeout,
        cudaErrorCudartUnloading, cudaErrorInitializationError, cudaErrorUnknown}) {
    EXPECT_EQ(cuda_error_code(error), StatusCode::kFaulted) << cudaGetErrorName(error);
  }
  // A code of a runtime that is newer than this list.
  EXPECT_EQ(cuda_error_code(static_cast<cudaError_t>(998)), StatusCode::kFaulted);
}

TEST(CudaError, WhatTheDriverRefusesDoesNotFault) {
  const std::pair<cudaError_t, StatusCode> expected[] = {
      {cudaSuccess, StatusCode::kOk},
      {cudaErrorMemoryAllocation, StatusCode::kResourceExhausted},
      {cudaErrorInvalidValue, StatusCode::kInvalidArgument},
      {cudaErrorInvalidDevice, StatusCode::kInvalidArgument},
      {cudaErrorInvalidHostPointer, StatusCode::kInvalidArgument},
      {cudaErrorInvalidDevicePointer, StatusCode::kInvalidArgument},
      {cudaErrorInvalidMemcpyDirection, StatusCode::kInvalidArgument},
      {cudaErrorInvalidResourceHandle, StatusCode::kInvalidArgument},
      {cudaErrorInvalidConfiguration, StatusCode::kInternal},
      {cudaErrorInvalidClusterSize, StatusCode::kInternal},
      {cudaErrorLaunchOutOfResources, StatusCode::kInternal},
      {cudaErrorNotReady, StatusCode::kInternal},
      {cudaErrorNoDevice, StatusCode::kUnsupported},
      {cudaErrorInsufficientDriver, StatusCode::kUnsupported},
      {cudaErrorNoKernelImageForDevice, StatusCode::kUnsupported},
      {cudaErrorInvalidDeviceFunction, StatusCode::kUnsupported},
      {cudaErrorUnsupportedPtxVersion, StatusCode::kUnsupported},
      {cudaErrorNotSupported, StatusCode::kUnsupported},
      {cudaErrorStreamCaptureUnsupported, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureInvalidated, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureMerge, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureUnmatched, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureUnjoined, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureIsolation, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureImplicit, StatusCode::kFailedPrecondition},
      {cudaErrorCapturedEvent, StatusCode::kFailedPrecondition},
      {cudaErrorStreamCaptureWrongThread, StatusCode::kFailedPrecondition},
  };
  for (const auto& [error, code] : expected) {
    EXPECT_EQ(cuda_error_code(error), code) << cudaGetErrorName(error);
  }
}

// The call, what the driver says of it, and where it stands.
TEST(CudaError, MessagesNameCallAndPlace) {
  const auto refused = []() -> Status {
    DSV4RT_CUDA_TRY(cudaSetDevice(-1));
    return {};
  };
  const Status status = refused();
  ASSERT_FALSE(status.ok());
  for (const char* part : {"cudaSetDevice(-1): ", "cudaError", "cuda_error_test.cpp:"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace dsv4rt::test
