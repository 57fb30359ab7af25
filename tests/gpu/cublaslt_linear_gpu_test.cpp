// Linears by cuBLASLt, of a backend that need not be deterministic: against the CPU, and against themselves. Here it
// takes products of every size.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cublaslt_library.h"
#include "backend/cuda/kernels/indexer_topk/select_state.h"
#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"
#include "gpu/support/child_process.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "gpu/support/nvfp4_operand.h"
#include "support/expect_ok.h"
#include "support/temp_directory.h"
#include "support/test_backend.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {
namespace {

constexpr std::size_t kScratchBytes = std::size_t{64} << 20;
constexpr auto kBf16 = WeightEncoding::kBf16;
constexpr auto kFp8 = WeightEncoding::kFp8Block128;
constexpr auto kNvfp4 = WeightEncoding::kNvfp4;
constexpr auto kPlain = ActivationRounding::kNone;
constexpr auto kRounded = ActivationRounding::kFp8Block128;

// Relative L2 against the CPU. BF16 products are exact and only the order of FP32 sums differs; of a sum of 128 FP8
// products the tensor core keeps about 14 bits (seen: 3e-4 at 4096 inputs).
double tolerance_of(WeightEncoding weight) {
  return weight == kFp8 ? 1e-3 : 1e-5;
}
// BF16 outputs add their own rounding, 2^-9 of a value at most.
constexpr double kOutputRounding = 2e-3;

class CublasLtLinearGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    auto fast = create_cuda_backend({.device = 0, .stream = nullptr, .deterministic = false});
    ASSERT_OK(fast);
    fast_ = std::move(fast).value();
    auto memory = fast_->allocate(kScratchBytes, "scratch");
    ASSERT_OK(memory);
    scratch_memory_ = std::move(memory).value();
    scratch_ = cuda::Scratch(scratch_memory_.data(), scratch_memory_.size());
    device_ = describe_gpu();
    ASSERT_NE(device_, nullptr);
    auto library = cuda::CublasLtLinear::create(device_->facts().compute_major, 0);
    ASSERT_OK(library);
    row_copies_ = (*library)->row_copies();
    ops_ = std::make_unique<cuda::CudaOps>(*device_, static_cast<cudaStream_t>(fast_->native_stream()), scratch_,
                                           std::move(library).value());
    auto cpu = create_cpu_test_backend();
    ASSERT_OK(cpu);
    cpu_ = std::move(cpu).value();
  }

  static std::vector<bf16> random_inputs(std::int64_t count, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<bf16> x(static_cast<std::size_t>(count));
    for (bf16& value : x) value = random_bf16(random, -6, 3);
    return x;
  }

  std::unique_ptr<PackedLinear> random_weight(WeightEncoding encoding, std::int64_t out, std::int64_t in,
                                              std::uint32_t seed) {
    TestMatrix matrix;
    fill_matrix(matrix, encoding, encoding == kFp8 ? kRounded : kPlain, out, in, seed);
    return pack(*fast_, matrix.host);
  }

  // y [T, out] of x [T, in], without gaps.
  static void enqueue(Ops& ops, const PackedLinear& weight, const DeviceArray<bf16>& x, const DeviceArray<float>& y,
                      std::int32_t tokens) {
    const LinearCall call{x.data(), weight.in_features(), &weight, y.data(), weight.out_features(), OutputType::kF32};
    EXPECT_OK(ops.linear(tokens, std::span(&call, 1)));
  }
  std::vector<float> outputs(const PackedLinear& weight, const DeviceArray<bf16>& x, std::int32_t tokens) {
    const DeviceArray<float> y(*fast_, static_cast<std::size_t>(tokens * weight.out_features()));
    enqueue(*ops_, weight, x, y, tokens);
    return y.download();
  }

  // Compares some rows of y [T, out] with the CPU's of the same rows of x [T, in].
  void expect_close(const PackedLinear& weight, const std::vector<bf16>& x, std::int64_t x_stride,
                    const std::vector<float>& y, std::int64_t y_stride, std::int32_t tokens, double tolerance,
                    const std::string& what) {
    const auto in = static_cast<std::size_t>(weight.in_features());
    const auto out = static_cast<std::size_t>(weight.out_features());
    double error = 0;
    double norm = 0;
    for (std::int32_t t = 0; t < tokens; t = t < 3 || t >= tokens - 4 ? t + 1 : std::min(tokens - 4, t + 40)) {
      const std::span row(x.data() + t * x_stride, in);
      std::vector<float> expected(out);
      const LinearCall call{row.data(),      weight.in_features(),  &weight,
                            expected.data(), weight.out_features(), OutputType::kF32};
      ASSERT_OK(cpu_->ops().linear(1, std::span(&call, 1)));
      for (std::size_t n = 0; n < out; ++n) {
        const double value = double{y[static_cast<std::size_t>(t * y_stride) + n]};
        error += (value - double{expected[n]}) * (value - double{expected[n]});
        norm += double{expected[n]} * double{expected[n]};
      }
    }
    const double relative = std::sqrt(error / norm);
    std::printf("[     INFO ] %s: %.1e\n", what.c_str(), relative);
    EXPECT_LE(relative, tolerance) << what;
  }

  std::unique_ptr<Backend> fast_;
  Buffer scratch_memory_;
  cuda::Scratch scratch_;
  cuda::RowCopies row_copies_ = cuda::RowCopies::kNone;
  std::unique_ptr<const cuda::CudaDevice> device_;
  std::unique_ptr<cuda::CudaOps> ops_;
  std::unique_ptr<Backend> cpu_;
};

std::vector<float> widen(const std::vector<bf16>& values) {
  std::vector<float> wide;
  for (const bf16 value : values) wide.push_back(to_float(value));
  return wide;
}

// The projections of V4-Flash: wq_a, wkv, wo_b and a slice of wq_b; the compressor and the index head weights.
TEST_F(CublasLtLinearGpuTest, AgreesWithTheCpu) {
  struct Shape {
    WeightEncoding weight;
    std::int64_t out;
    std::int64_t in;
    OutputType output;
  };
  const Shape shapes[] = {
      {kFp8, 1024, 4096, OutputType::kBf16}, {kFp8, 512, 4096, OutputType::kF32},
      {kFp8, 4096, 8192, OutputType::kBf16}, {kFp8, 4096, 1024, OutputType::kBf16},
      {kFp8, 192, 384, OutputType::kF32},    {kBf16, 1024, 4096, OutputType::kF32},
      {kBf16, 64, 4096, OutputType::kBf16},  {kBf16, 320, 272, OutputType::kBf16},
  };
  std::uint32_t seed = 1;
  for (const Shape& shape : shapes) {
    TestMatrix matrix;
    fill_matrix(matrix, shape.weight, shape.weight == kFp8 ? kRounded : kPlain, shape.out, shape.in, ++seed);
    const auto device_weight = pack(*fast_, matrix.host);
    const auto host_weight = pack(*cpu_, matrix.host);
    for (const std::int32_t tokens : {1, 7, 128, 1000}) {
      const auto x = random_inputs(tokens * shape.in, ++seed);
      const DeviceArray<bf16> device_x(*fast_, x);
      const auto count = static_cast<std::size_t>(tokens * shape.out);
      // A row more than there are tokens stays as it is.
      std::vector<float> y;
      LinearCall call{device_x.data(), shape.in, device_weight.get(), nullptr, shape.out, shape.output};
      if (shape.output == OutputType::kF32) {
        const DeviceArray<float> device_y(*fast_,
                                          std::vector<float>(count + static_cast<std::size_t>(shape.out), -1.5F));
        call.y = device_y.data();
        ASSERT_OK(ops_->linear(tokens, std::span(&call, 1)));
        y = device_y.download();
      } else {
        const DeviceArray<bf16> device_y(
            *fast_, std::vector<bf16>(count + static_cast<std::size_t>(shape.out), to_bf16(-1.5F)));
        call.y = device_y.data();
        ASSERT_OK(ops_->linear(tokens, std::span(&call, 1)));
        y = widen(device_y.download());
      }
      EXPECT_TRUE(std::all_of(y.begin() + static_cast<std::ptrdiff_t>(count), y.end(),
                              [](float value) { return value == -1.5F; }));
      const double rounding = shape.output == OutputType::kF32 ? 0 : kOutputRounding;
      expect_close(*host_weight, x, shape.in, y, shape.out, tokens, tolerance_of(shape.weight) + rounding,
                   std::string(shape.weight == kFp8 ? "fp8" : "bf16") + " [" + std::to_string(shape.out) + ", " +
                       std::to_string(shape.in) + "] T " + std::to_string(tokens));
    }
  }
}

// One operation with weights of every kind, those that stay exact among them; strided inputs and outputs.
TEST_F(CublasLtLinearGpuTest, StridedCallsOfEveryKind) {
  struct Part {
    WeightEncoding weight;
    ActivationRounding activation;
    std::int64_t out;
  };
  constexpr std::int64_t kIn = 1024;
  constexpr std::int64_t kXStride = kIn + 64;
  constexpr std::int64_t kYStride = 1024;
  const Part parts[] = {{kFp8, kRounded, 192}, {kBf16, kPlain, 64},  {kNvfp4, kPlain, 128},
                        {kFp8, kPlain, 128},   {kFp8, kRounded, 64}, {kBf16, kRounded, 64}};
  for (const std::int32_t tokens : {1, 9, 130}) {
    const auto x = random_inputs(tokens * kXStride, 3);
    const DeviceArray<bf16> device_x(*fast_, x);
    const DeviceArray<float> y(*fast_, std::vector<float>(static_cast<std::size_t>(tokens * kYStride), -1.5F));
    std::vector<std::unique_ptr<PackedLinear>> host_weights;
    std::vector<std::unique_ptr<PackedLinear>> weights;
    std::vector<LinearCall> calls;
    std::int64_t column = 0;
    std::uint32_t seed = 40;
    for (const Part& part : parts) {
      TestMatrix matrix;
      fill_matrix(matrix, part.weight, part.activation, part.out, kIn, ++seed);
      weights.push_back(pack(*fast_, matrix.host));
      host_weights.push_back(pack(*cpu_, matrix.host));
      calls.push_back({device_x.data(), kXStride, weights.back().get(), y.data() + column, kYStride, OutputType::kF32});
      column += part.out + 16;
    }
    ASSERT_OK(ops_->linear(tokens, calls));
    const auto out = y.download();
    column = 0;
    for (std::size_t i = 0; i < std::size(parts); ++i) {
      const std::vector<float> of_part(out.begin() + column, out.end());
      expect_close(*host_weights[i], x, kXStride, of_part, kYStride, tokens, tolerance_of(parts[i].weight),
                   "part " + std::to_string(i) + " T " + std::to_string(tokens));
      column += parts[i].out + 16;
      for (std::int32_t t = 0; t < tokens; ++t) {
        for (std::int64_t n = column - 16; n < column; ++n) {
          ASSERT_EQ(out[static_cast<std::size_t>(t * kYStride + n)], -1.5F) << "between outputs, T " << tokens;
        }
      }
    }
  }
}

// A capture is the first use of its shapes; its replays give the bytes of eager calls.
TEST_F(CublasLtLinearGpuTest, CapturedEqualsEager) {
  constexpr std::int64_t kOut = 512;
  constexpr std::int64_t kIn = 2048;
  for (const WeightEncoding encoding : {kFp8, kBf16}) {
    const auto weight = random_weight(encoding, kOut, kIn, 5);
    for (const std::int32_t tokens : {1, 24, 136}) {
      const DeviceArray<bf16> x(*fast_, random_inputs(tokens * kIn, 6));
      const DeviceArray<float> captured(*fast_, static_cast<std::size_t>(tokens * kOut));
      ASSERT_OK(fast_->begin_capture());
      enqueue(*ops_, *weight, x, captured, tokens);
      const auto work = fast_->end_capture();
      ASSERT_OK(work);
      const auto expected = outputs(*weight, x, tokens);
      for (int repeat = 0; repeat < 2; ++repeat) {
        ASSERT_OK(fast_->launch(**work));
        EXPECT_EQ(captured.download(), expected) << "T " << tokens;
      }
    }
  }
}

TEST_F(CublasLtLinearGpuTest, NanAndInfinityStayInTheirRow) {
  constexpr std::int64_t kOut = 128;
  constexpr std::int64_t kIn = 1024;
  constexpr std::int32_t kTokens = 14;
  for (const WeightEncoding encoding : {kFp8, kBf16}) {
    const auto weight = random_weight(encoding, kOut, kIn, 81);
    auto x = random_inputs(kTokens * kIn, 82);
    const auto clean = outputs(*weight, DeviceArray<bf16>(*fast_, x), kTokens);
    for (const std::size_t row : {3, 13}) x[row * kIn + 5] = {0xffc1};  // NaN with a payload
    x[7 * kIn + 200] = {0x7f80};
    const auto y = outputs(*weight, DeviceArray<bf16>(*fast_, x), kTokens);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const auto row = i / static_cast<std::size_t>(kOut);
      if (row == 7) {  // E4M3 has no infinity
        ASSERT_TRUE(encoding == kFp8 ? std::isnan(y[i]) : !std::isfinite(y[i]));
        continue;
      }
      ASSERT_TRUE(row == 3 || row == 13 ? std::isnan(y[i]) : y[i] == clean[i]) << "row " << row;
    }
  }
}

// Where cuBLASLt has NVFP4 products, inputs are rounded to NVFP4, exactly in BF16 under this input scale. Elsewhere the
// results are the bytes of a deterministic backend.
TEST_F(CublasLtLinearGpuTest, Nvfp4WeightsWithAnInputScale) {
  constexpr std::int64_t kOut = 256;
  constexpr std::int64_t kIn = 1024;
  constexpr float kInputScale = 0x1p-6F;
  TestMatrix matrix;
  fill_matrix(matrix, kNvfp4, kPlain, kOut, kIn, 91);
  matrix.host.input_scale = kInputScale;
  const auto weight = pack(*fast_, matrix.host);
  const auto exact_weight = pack(gpu(), matrix.host);
  const auto host_weight = pack(*cpu_, matrix.host);
  for (const std::int32_t tokens : {1, 9, 130}) {
    auto x = random_inputs(tokens * kIn, 92);
    const DeviceArray<bf16> device_x(*fast_, x);
    const auto y = outputs(*weight, device_x, tokens);
    if (row_copies_ == cuda::RowCopies::kBf16AndNvfp4) {
      round_nvfp4(x, kInputScale);
      expect_close(*host_weight, x, kIn, y, kOut, tokens, tolerance_of(kNvfp4), "nvfp4 T " + std::to_string(tokens));
      continue;
    }
    const DeviceArray<float> exact(gpu(), static_cast<std::size_t>(tokens * kOut));
    ASSERT_OK(fast_->synchronize());  // the other backend has a stream of its own
    enqueue(gpu().ops(), *exact_weight, device_x, exact, tokens);
    EXPECT_EQ(y, exact.download()) << "T " << tokens;
  }
}

// What cuBLASLt cannot take, or takes no faster, is computed exactly: the bytes of a deterministic backend.
TEST_F(CublasLtLinearGpuTest, OtherCallsStayExact) {
  constexpr std::int64_t kOut = 128;
  constexpr std::int64_t kIn = 256;
  constexpr std::int32_t kTokens = 5;
  TestMatrix matrix;
  fill_matrix(matrix, kFp8, kRounded, kOut, kIn, 1);
  const auto weight = pack(*fast_, matrix.host);
  const DeviceArray<bf16> x(*fast_, random_inputs(kTokens * kIn, 2));
  const DeviceArray<float> y(*fast_, std::vector<float>(kTokens * (kOut + 8)));
  ASSERT_OK(fast_->synchronize());  // the other backend has a stream of its own
  const auto outputs = [&](Ops& ops, std::int64_t column, std::int64_t y_stride) {
    const LinearCall call{x.data(), kIn, weight.get(), y.data() + column, y_stride, OutputType::kF32};
    EXPECT_OK(ops.linear(kTokens, std::span(&call, 1)));
    EXPECT_OK(gpu().synchronize());
    return y.download();
  };
  ASSERT_OK(fast_->reserve_scratch(kScratchBytes));
  ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
  for (const auto& [column, y_stride] : {std::pair{0, 128}, std::pair{1, 128}, std::pair{0, 129}}) {
    const auto expected = outputs(gpu().ops(), column, y_stride);
    EXPECT_EQ(outputs(fast_->ops(), column, y_stride), expected) << "too little work";
    const bool unaligned = column != 0 || y_stride != kOut;
    EXPECT_EQ(outputs(*ops_, column, y_stride) == expected, unaligned) << column << " " << y_stride;
  }
}

TEST_F(CublasLtLinearGpuTest, ScratchIsPlanned) {
  TestMatrix matrix;
  fill_matrix(matrix, kFp8, kRounded, 128, 256, 1);
  const auto weight = pack(*fast_, matrix.host);
  const DeviceArray<bf16> x(*fast_, random_inputs(7 * 256, 2));
  const DeviceArray<float> y(*fast_, std::vector<float>(7 * 128));
  const LinearCall call{x.data(), 256, weight.get(), y.data(), 128, OutputType::kF32};
  // Of few tokens and of many, whose products need more than what is planned at least.
  for (const std::int32_t tokens : {7, 100'000}) {
    StepShapes shapes{.max_tokens = tokens};
    shapes.linears.push_back({.matrices = 1, .inputs = 1, .in_features = 256, .out_features = 128});
    const auto planned = cuda::scratch_parts(static_cast<std::size_t>(fast_->scratch_bytes(shapes)));
    EXPECT_GE(static_cast<std::int64_t>(planned.operation_bytes),
              cuda::CublasLtLinear::scratch_bytes(tokens, 256, 128));
  }
  const auto needed = static_cast<std::size_t>(cuda::CublasLtLinear::scratch_bytes(7, 256, 128));
  ASSERT_LE(needed, kScratchBytes);
  scratch_ = cuda::Scratch(scratch_memory_.data(), needed);
  EXPECT_OK(ops_->linear(7, std::span(&call, 1)));
  scratch_ = cuda::Scratch(scratch_memory_.data(), needed - 1);
  EXPECT_EQ(ops_->linear(7, std::span(&call, 1)).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(fast_->packed_bytes(matrix.host), 2 * 128 * 256 + 2 + 4 * 4);  // a second copy, four FP32 scales a row
  EXPECT_EQ(gpu().packed_bytes(matrix.host), 128 * 256 + 2);
}

// What cuBLASLt says to NVFP4 operands is what decides whether it gets any.
TEST_F(CublasLtLinearGpuTest, Nvfp4ProductsNeedCapability10) {
  const auto lt = cuda::load_cublaslt();
  ASSERT_OK(lt);
  const auto handle = cuda::create_cublaslt_handle(*lt);
  ASSERT_OK(handle);
  alignas(16) const std::array<std::byte, 16> scales{};
  const auto product = cuda::CublasLtProduct::create(
      *lt, handle->get(),
      {.outputs = 256, .inputs = 1024, .tokens = 130, .operands = kNvfp4, .x_stride = 1024, .y_stride = 256},
      {.weight_scales = scales.data(), .x_scales = scales.data()});
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  EXPECT_EQ(cuda::has_nvfp4_products(*lt, handle->get()), major >= 10);
  EXPECT_EQ(row_copies_ == cuda::RowCopies::kBf16AndNvfp4, major == 10);
  if (major >= 10) {
    EXPECT_OK(product);
  } else {
    EXPECT_TRUE(fails_with(product, StatusCode::kUnsupported, {"no algorithm for NVFP4 [256, 1024] with 130 tokens"}));
  }
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
