// What CublasLtLinear hands to cuBLASLt for NVFP4 weights, on any GPU: a stand-in for the library's product reads the
// operands as the documentation says and multiplies on the host.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <memory>
#include <optional>
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

constexpr std::int32_t kMostTokens = 131;

class Nvfp4ProductGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    library_ = cuda::load_cublaslt();
    ASSERT_OK(library_);
    StandIn::real_set_attribute = &library_->cublasLtMatmulDescSetAttribute;
    StandIn::products = 0;
    device_ = describe_gpu();
    ASSERT_NE(device_, nullptr);
    memory_.emplace(gpu(), kScratchBytes);
    set_scratch(kScratchBytes);
  }

  // Operations that give products of least_work multiply-adds and more to the stand-in.
  std::unique_ptr<cuda::CudaOps> make_ops(std::int64_t least_work) {
    auto handle = cuda::create_cublaslt_handle(*library_);
    EXPECT_OK(handle);
    cuda::CublasLt lt = *library_;
    lt.cublasLtMatmulDescSetAttribute = StandIn::set_attribute;
    lt.cublasLtMatmulAlgoGetHeuristic = StandIn::heuristic;
    lt.cublasLtMatmul = StandIn::product;
    return std::make_unique<cuda::CudaOps>(
        *device_, static_cast<cudaStream_t>(gpu().native_stream()), scratch_,
        std::make_unique<cuda::CublasLtLinear>(lt, std::move(handle).value(), least_work));
  }
  void set_scratch(std::size_t bytes) { scratch_ = cuda::Scratch(memory_->data(), bytes); }

  // Held as rows where the input scale says how.
  std::unique_ptr<PackedLinear> pack_with_rows(const TestMatrix& matrix) {
    auto weight = cuda::pack_linear(gpu(), *device_, matrix.host, LinearPrecision::kNvfp4);
    EXPECT_OK(weight);
    return std::move(weight).value();
  }

  static constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
  Result<cuda::CublasLt> library_ = Status{};
  std::unique_ptr<const cuda::CudaDevice> device_;
  std::optional<DeviceArray<std::byte>> memory_;
  cuda::Scratch scratch_;
};

void fill_nvfp4(TestMatrix& matrix, std::uint32_t seed, float input_scale) {
  fill_matrix(matrix, WeightEncoding::kNvfp4, ActivationRounding::kNone, kOut, kIn, seed);
  matrix.host.input_scale = input_scale;
}

// Three weights share x; the last has another input scale, for which x is encoded anew.
TEST_F(Nvfp4ProductGpuTest, OperandsAsDocumented) {
  set_scratch(static_cast<std::size_t>(cuda::CublasLtLinear::scratch_bytes(kMostTokens, kIn)));
  const auto ops = make_ops(0);
  const auto cpu = create_cpu_test_backend();
  ASSERT_OK(cpu);

  constexpr std::array<float, 3> kInputScales = {0x1p-6F, 0x1p-6F, 0x1p-4F};
  std::vector<std::unique_ptr<PackedLinear>> weights;
  std::vector<std::unique_ptr<PackedLinear>> host_weights;
  for (std::size_t i = 0; i < kInputScales.size(); ++i) {
    TestMatrix matrix;
    fill_nvfp4(matrix, static_cast<std::uint32_t>(i), kInputScales[i]);
    weights.push_back(pack_with_rows(matrix));
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
    ASSERT_OK(ops->linear(tokens, calls));
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

TEST_F(Nvfp4ProductGpuTest, ScratchIsTakenAsPlanned) {
  TestMatrix matrix;
  fill_nvfp4(matrix, 1, 0x1p-6F);
  const auto weight = pack_with_rows(matrix);
  const DeviceArray<bf16> x(gpu(), std::vector<bf16>(7 * kIn));
  const DeviceArray<float> y(gpu(), std::vector<float>(7 * kYStride));
  const LinearCall call{x.data(), kIn, weight.get(), y.data(), kYStride, OutputType::kF32};
  const auto needed = static_cast<std::size_t>(cuda::CublasLtLinear::scratch_bytes(7, kIn));
  ASSERT_LE(needed, kScratchBytes);
  StandIn::tokens = 7;
  set_scratch(needed);
  EXPECT_OK(make_ops(0)->linear(7, std::span(&call, 1)));
  set_scratch(needed - 1);
  EXPECT_EQ(make_ops(0)->linear(7, std::span(&call, 1)).code(), StatusCode::kResourceExhausted);
}

// What cuBLASLt does not multiply is computed exactly, beside what it does: weights without rows, outputs that are not
// aligned, and everything where there is too little work.
TEST_F(Nvfp4ProductGpuTest, OtherCallsStayExact) {
  constexpr std::int32_t kTokens = 5;
  std::mt19937 random(10);
  std::vector<bf16> values(static_cast<std::size_t>(kTokens * kIn));
  for (bf16& value : values) value = random_bf16(random, -6, 3);
  const DeviceArray<bf16> x(gpu(), values);
  std::array<TestMatrix, 3> matrices;
  fill_nvfp4(matrices[0], 1, 0x1p-6F);
  fill_nvfp4(matrices[1], 2, 0);
  fill_matrix(matrices[2], WeightEncoding::kBf16, ActivationRounding::kNone, kOut, kIn, 3);
  const auto with_rows = pack_with_rows(matrices[0]);
  const auto without_scale = pack_with_rows(matrices[1]);
  const auto of_bf16 = pack_with_rows(matrices[2]);
  constexpr std::int64_t kValues = kTokens * kYStride + 4;  // aligned as the array is
  const std::vector<float> nothing(3 * kValues, -1.5F);
  const DeviceArray<float> y(gpu(), nothing);
  const auto calls = [&](bool aligned) {
    float* const first = y.data() + (aligned ? 0 : 1);
    return std::array{LinearCall{x.data(), kIn, with_rows.get(), first, kYStride, OutputType::kF32},
                      LinearCall{x.data(), kIn, without_scale.get(), y.data() + kValues, kYStride, OutputType::kF32},
                      LinearCall{x.data(), kIn, of_bf16.get(), y.data() + 2 * kValues, kYStride, OutputType::kF32}};
  };
  const auto outputs = [&](Ops& ops, bool aligned) {
    copy_to_device(y.data(), nothing.data(), nothing.size() * sizeof(float));
    const auto given = calls(aligned);
    EXPECT_OK(ops.linear(kTokens, given));
    EXPECT_OK(gpu().synchronize());
    return y.download();
  };
  ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
  StandIn::tokens = kTokens;
  const auto library_ops = make_ops(0);
  const auto exact = outputs(gpu().ops(), true);
  const auto mixed = outputs(*library_ops, true);
  EXPECT_EQ(StandIn::products, 1);
  EXPECT_NE(mixed, exact);
  EXPECT_TRUE(std::equal(mixed.begin() + kValues, mixed.end(), exact.begin() + kValues));
  const auto exact_elsewhere = outputs(gpu().ops(), false);
  EXPECT_EQ(outputs(*library_ops, false), exact_elsewhere);
  EXPECT_EQ(outputs(*make_ops(kTokens * kOut * kIn + 1), true), outputs(gpu().ops(), true));
  EXPECT_EQ(StandIn::products, 1);
}

}  // namespace
}  // namespace dsv4rt::test
