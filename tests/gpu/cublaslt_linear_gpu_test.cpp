// What the CUDA backend makes of LinearPrecision::kNvfp4 on this machine, and the library that it needs.
// nvfp4_product_gpu_test.cpp has the products themselves.
#include <array>
#include <cmath>
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
#include "gpu/support/nvfp4_operand.h"
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
// does. Where there are, inputs are rounded to NVFP4, exactly in BF16 under this input scale.
TEST_F(CublasLtLinearGpuTest, BackendsDoWhatTheySay) {
  constexpr std::int64_t kOut = 2048;
  constexpr std::int64_t kIn = 2048;
  constexpr std::int32_t kTokens = 1024;
  static_assert(kOut * kIn * kTokens >= cuda::CublasLtLinear::kLeastWork);
  constexpr float kInputScale = 0x1p-6F;
  auto asked = create_cuda_backend({.device = 0, .linear_precision = LinearPrecision::kNvfp4});
  ASSERT_OK(asked);
  Backend& backend = **asked;
  const bool served = compute_major() == 10;
  EXPECT_EQ(backend.linear_precision(), served ? LinearPrecision::kNvfp4 : LinearPrecision::kExact);
  TestMatrix matrix;
  fill_matrix(matrix, WeightEncoding::kNvfp4, ActivationRounding::kNone, kOut, kIn, 91);
  matrix.host.input_scale = kInputScale;
  EXPECT_EQ(backend.packed_bytes(matrix.host) > gpu().packed_bytes(matrix.host), served);
  StepShapes shapes{.max_tokens = kTokens};
  shapes.linears.push_back({.matrices = 1, .inputs = 1, .in_features = kIn, .out_features = kOut});
  EXPECT_EQ(backend.scratch_bytes(shapes) > gpu().scratch_bytes(shapes), served);
  std::mt19937 random(92);
  std::vector<bf16> x(kTokens * kIn);
  for (bf16& value : x) value = random_bf16(random, -6, 3);
  const auto outputs = [&](Backend& of) {
    EXPECT_OK(of.reserve_scratch(static_cast<std::size_t>(of.scratch_bytes(shapes))));
    const auto weight = pack(of, matrix.host);
    const DeviceArray<bf16> device_x(of, x);
    const DeviceArray<float> y(of, static_cast<std::size_t>(kTokens * kOut));
    const LinearCall call{device_x.data(), kIn, weight.get(), y.data(), kOut, OutputType::kF32};
    EXPECT_OK(of.ops().linear(kTokens, std::span(&call, 1)));
    return y.download();
  };
  const std::vector<float> found = outputs(backend);
  if (served) round_nvfp4(x, kInputScale);
  const std::vector<float> expected = outputs(gpu());
  if (!served) {
    EXPECT_EQ(found, expected);
    return;
  }
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    error += std::pow(double{found[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  EXPECT_LE(std::sqrt(error / norm), 1e-5);  // only the order of FP32 sums differs
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
