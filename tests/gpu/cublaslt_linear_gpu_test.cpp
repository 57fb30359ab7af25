// What the CUDA backend makes of LinearPrecision::kNvfp4 on this machine, and the library that it needs.
// nvfp4_product_gpu_test.cpp has the products themselves.
#include <array>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device/cublaslt_library.h"
#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"
#include "gpu/support/child_process.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

using CublasLtLinearGpuTest = GpuTest;

int compute_major() {
  int major = 0;
  EXPECT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  return major;
}

// What cuBLASLt says to NVFP4 operands is what decides whether it gets any.
TEST_F(CublasLtLinearGpuTest, Nvfp4ProductsNeedCapability10) {
  const auto lt = cuda::load_cublaslt();
  ASSERT_OK(lt);
  const auto handle = cuda::create_cublaslt_handle(*lt);
  ASSERT_OK(handle);
  alignas(16) const std::array<std::byte, 16> scales{};
  const auto product = cuda::CublasLtProduct::create(*lt, handle->get(),
                                                     {.outputs = 256, .inputs = 1024, .tokens = 130, .y_stride = 256},
                                                     {.weight_scales = scales.data(), .x_scales = scales.data()});
  const int major = compute_major();
  EXPECT_EQ(cuda::has_nvfp4_products(*lt, handle->get()), major >= 10);
  const auto library = cuda::CublasLtLinear::create(major);
  ASSERT_OK(library);
  EXPECT_EQ(*library != nullptr, major == 10);
  if (major >= 10) {
    EXPECT_OK(product);
  } else {
    EXPECT_TRUE(fails_with(product, StatusCode::kUnsupported, {"no algorithm for NVFP4 [256, 1024] with 130 tokens"}));
  }
}

// Where there are no such products the backend says that it is exact, and holds, plans and computes what an exact one
// does.
TEST_F(CublasLtLinearGpuTest, DevicesWithoutNvfp4ProductsAreExact) {
  if (compute_major() == 10) GTEST_SKIP() << "this device has NVFP4 products";
  constexpr std::int64_t kOut = 256;
  constexpr std::int64_t kIn = 1024;
  auto asked = create_cuda_backend({.device = 0, .linear_precision = LinearPrecision::kNvfp4});
  ASSERT_OK(asked);
  Backend& backend = **asked;
  EXPECT_EQ(backend.linear_precision(), LinearPrecision::kExact);
  TestMatrix matrix;
  fill_matrix(matrix, WeightEncoding::kNvfp4, ActivationRounding::kNone, kOut, kIn, 91);
  matrix.host.input_scale = 0x1p-6F;
  EXPECT_EQ(backend.packed_bytes(matrix.host), gpu().packed_bytes(matrix.host));
  StepShapes shapes{.max_tokens = 100'000};
  shapes.linears.push_back({.matrices = 1, .inputs = 1, .in_features = kIn, .out_features = kOut});
  EXPECT_EQ(backend.scratch_bytes(shapes), gpu().scratch_bytes(shapes));
  std::mt19937 random(92);
  std::vector<bf16> x(130 * kIn);
  for (bf16& value : x) value = random_bf16(random, -6, 3);
  const auto outputs = [&](Backend& of) {
    const auto weight = pack(of, matrix.host);
    const DeviceArray<bf16> device_x(of, x);
    const DeviceArray<float> y(of, static_cast<std::size_t>(130 * kOut));
    const LinearCall call{device_x.data(), kIn, weight.get(), y.data(), kOut, OutputType::kF32};
    EXPECT_OK(of.ops().linear(130, std::span(&call, 1)));
    return y.download();
  };
  EXPECT_EQ(outputs(backend), outputs(gpu()));
}

// Needs no GPU.
TEST(CublasLtLibrary, FailuresNameCallAndPlace) {
  const auto lt = cuda::load_cublaslt();
  if (!lt.ok()) GTEST_SKIP() << lt.status().message();
  const auto failing = [&]() -> Status {
    DSV4RT_CUBLASLT_TRY(*lt, cublasLtMatmulDescSetAttribute, nullptr, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 0);
    return {};
  };
  const Status status = failing();
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  for (const char* part :
       {"cublasLtMatmulDescSetAttribute(nullptr", "CUBLAS_STATUS_", "cublaslt_linear_gpu_test.cpp:"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

// A file that is no library stands before the real one.
TEST(CublasLtLibrary, MissingIsUnsupported) {
  const TempDirectory directory;
  const char* path = std::getenv("LD_LIBRARY_PATH");
  std::ofstream(directory / ("libcublasLt.so." + std::to_string(CUDART_VERSION / 1000))) << "no library";
  const ChildResult child = run_in_child(
      "DISABLED_ChildOfCublasLtLibrary.Missing",
      "LD_LIBRARY_PATH=" + directory.path().string() + (path != nullptr ? ":" + std::string(path) : std::string()));
  EXPECT_EQ(child.exit_code, 0) << child.output;
  EXPECT_NE(child.output.find("[  PASSED  ] 1 test"), std::string::npos) << child.output;
}

TEST(DISABLED_ChildOfCublasLtLibrary, Missing) {
  EXPECT_TRUE(fails_with(cuda::load_cublaslt(), StatusCode::kUnsupported, {"cuBLASLt", "libcublasLt.so"}));
}

}  // namespace
}  // namespace dsv4rt::test
