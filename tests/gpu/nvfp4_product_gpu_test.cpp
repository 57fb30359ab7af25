// What CublasLtLinear hands to cuBLASLt for NVFP4 weights, on any GPU: a stand-in for the library's product reads the
// operands as the documentation says and multiplies on the host.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"
#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "gpu/support/device_writes.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "gpu/support/nvfp4_operand.h"
#include "support/test_backend.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kOut = 144;
constexpr std::int64_t kIn = 352;
constexpr std::int64_t kYStride = kOut + 8;

// The functions of the library that differ. Its descriptors are opaque; what the product needs of them is noted here.
struct StandIn {
  static inline const decltype(&::cublasLtMatmulDescSetAttribute)* real_set_attribute = nullptr;
  static inline const void* weight_scales = nullptr;
  static inline const void* x_scales = nullptr;
  static inline std::int64_t tokens = 0;
  static inline int products = 0;

  static cublasStatus_t set_attribute(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute,
                                      const void* value, std::size_t bytes) {
    if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) std::memcpy(&weight_scales, value, bytes);
    if (attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) std::memcpy(&x_scales, value, bytes);
    return (*real_set_attribute)(descriptor, attribute, value, bytes);
  }

  static cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                  cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t*, int* found) {
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  }

  static std::vector<std::byte> download(const void* source, std::int64_t bytes) {
    std::vector<std::byte> values(static_cast<std::size_t>(bytes));
    EXPECT_EQ(cudaMemcpy(values.data(), source, values.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return values;
  }

  static cublasStatus_t product(cublasLtHandle_t, cublasLtMatmulDesc_t, const void* alpha, const void* weight,
                                cublasLtMatrixLayout_t, const void* x, cublasLtMatrixLayout_t, const void* beta,
                                const void*, cublasLtMatrixLayout_t, void* y, cublasLtMatrixLayout_t,
                                const cublasLtMatmulAlgo_t*, void*, std::size_t, cudaStream_t stream) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(*static_cast<const float*>(beta), 0.0F);
    const auto weight_codes = download(weight, kOut * kIn / 2);
    const auto weight_tiles = download(weight_scales, cuda::nvfp4_scale_bytes(kOut, kIn / 16));
    const auto x_codes = download(x, tokens * kIn / 2);
    const auto x_tiles = download(x_scales, cuda::nvfp4_scale_bytes(tokens, kIn / 16));
    std::vector<float> row(kOut);
    for (std::int64_t token = 0; token < tokens; ++token) {
      for (std::int64_t n = 0; n < kOut; ++n) {
        double sum = 0;
        for (std::int64_t k = 0; k < kIn; ++k) {
          sum += double{nvfp4_value(weight_codes, weight_tiles, kIn, n, k)} *
                 double{nvfp4_value(x_codes, x_tiles, kIn, token, k)};
        }
        row[static_cast<std::size_t>(n)] = static_cast<float>(sum * double{*static_cast<const float*>(alpha)});
      }
      copy_to_device(static_cast<float*>(y) + token * kYStride, row.data(), row.size() * sizeof(float));
    }
    ++products;
    return CUBLAS_STATUS_SUCCESS;
  }
};

using Nvfp4ProductGpuTest = GpuTest;

// Three weights share x; the last has another input scale, for which x is encoded anew.
TEST_F(Nvfp4ProductGpuTest, OperandsAsDocumented) {
  const auto library = cuda::load_cublaslt();
  if (!library.ok()) GTEST_SKIP() << library.status().message();
  auto handle = cuda::create_cublaslt_handle(*library);
  ASSERT_OK(handle);
  cuda::CublasLt lt = *library;
  StandIn::real_set_attribute = &library->cublasLtMatmulDescSetAttribute;
  lt.cublasLtMatmulDescSetAttribute = StandIn::set_attribute;
  lt.cublasLtMatmulAlgoGetHeuristic = StandIn::heuristic;
  lt.cublasLtMatmul = StandIn::product;
  constexpr std::int32_t kMostTokens = 131;
  const auto scratch_bytes = static_cast<std::size_t>(cuda::CublasLtLinear::scratch_bytes(kMostTokens, kIn, kOut));
  const DeviceArray<std::byte> memory(gpu(), scratch_bytes);
  cuda::Scratch scratch(memory.data(), scratch_bytes);
  const auto device = describe_gpu();
  ASSERT_NE(device, nullptr);
  cuda::CudaOps ops(
      *device, static_cast<cudaStream_t>(gpu().native_stream()), scratch,
      std::make_unique<cuda::CublasLtLinear>(lt, std::move(handle).value(), cuda::RowCopies::kBf16AndNvfp4, 0));
  const auto cpu = create_cpu_test_backend();
  ASSERT_OK(cpu);

  constexpr std::array<float, 3> kInputScales = {0x1p-6F, 0x1p-6F, 0x1p-4F};
  std::vector<std::unique_ptr<PackedLinear>> weights;
  std::vector<std::unique_ptr<PackedLinear>> host_weights;
  for (std::size_t i = 0; i < kInputScales.size(); ++i) {
    TestMatrix matrix;
    fill_matrix(matrix, WeightEncoding::kNvfp4, ActivationRounding::kNone, kOut, kIn, static_cast<std::uint32_t>(i));
    matrix.host.input_scale = kInputScales[i];
    auto weight = cuda::pack_linear(gpu(), *device, matrix.host, cuda::RowCopies::kBf16AndNvfp4);
    ASSERT_OK(weight);
    weights.push_back(std::move(weight).value());
    host_weights.push_back(pack(**cpu, matrix.host));
  }
  std::mt19937 random(9);
  for (const std::int32_t tokens : {1, 6, kMostTokens}) {
    std::vector<bf16> x(static_cast<std::size_t>(tokens * kIn));
    for (bf16& value : x) value = random_bf16(random, -6, 3);
    const DeviceArray<bf16> device_x(gpu(), x);
    const auto y_values = static_cast<std::size_t>(tokens * kYStride);
    const DeviceArray<float> y(gpu(), kInputScales.size() * y_values);
    std::vector<LinearCall> calls;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      calls.push_back({device_x.data(), kIn, weights[i].get(), y.data() + i * y_values, kYStride, OutputType::kF32});
    }
    StandIn::tokens = tokens;
    StandIn::products = 0;
    ASSERT_OK(ops.linear(tokens, calls));
    EXPECT_EQ(StandIn::products, 3);
    const auto actual = y.download();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      auto rounded = x;
      round_nvfp4(rounded, kInputScales[i]);
      std::vector<float> expected(y_values);
      const LinearCall call{rounded.data(), kIn, host_weights[i].get(), expected.data(), kYStride, OutputType::kF32};
      ASSERT_OK((*cpu)->ops().linear(tokens, std::span(&call, 1)));
      double error = 0;
      double norm = 0;
      for (std::size_t at = 0; at < y_values; ++at) {
        error += std::pow(double{actual[i * y_values + at]} - double{expected[at]}, 2);
        norm += std::pow(double{expected[at]}, 2);
      }
      EXPECT_LE(std::sqrt(error / norm), 1e-5) << "weight " << i << ", T " << tokens;
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
