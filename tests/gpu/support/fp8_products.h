// Linears of LinearPrecision::kFp8 on the GPU: weights, inputs and backends.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "backend/cuda/scratch.h"
#include "gpu/support/gpu.h"
#include "gpu/support/gpu_device.h"
#include "support/expect_ok.h"
#include "unit/backend/linear_matrix.h"

namespace dsv4rt::test {

inline constexpr std::size_t kScratchBytes = std::size_t{192} << 20;
inline constexpr auto kRounded = ActivationRounding::kFp8Block128;

inline std::vector<bf16> random_inputs(std::int64_t count, std::uint32_t seed = 92) {
  std::mt19937 random(seed);
  std::vector<bf16> x(static_cast<std::size_t>(count));
  for (bf16& value : x) value = random_bf16(random, -6, 3);
  return x;
}

// A weight [out, in] whose products are of E4M3.
struct Weight {
  TestMatrix matrix;
  std::unique_ptr<PackedLinear> packed;

  Weight(Backend& backend, std::int64_t out, std::int64_t in, std::uint32_t seed = 91) {
    fill_matrix(matrix, WeightEncoding::kFp8Block128, kRounded, out, in, seed);
    packed = pack(backend, matrix.host);
  }
};

// Codes of x [tokens, width] on the device, `stride` scales a block; places of scales beyond the last token are
// `beyond`.
struct EncodedInputs {
  DeviceArray<std::uint8_t> codes;
  DeviceArray<float> scales;
  EncodedRows rows;

  EncodedInputs(Backend& backend, const DeviceArray<bf16>& x, std::int64_t width, std::int32_t tokens,
                std::int32_t stride, float beyond = 0)
      : codes(backend, std::vector<std::uint8_t>(static_cast<std::size_t>(tokens * width))),
        scales(backend, std::vector<float>(static_cast<std::size_t>(width / kEncodedBlockValues * stride), beyond)),
        rows{codes.data(), width, scales.data(), stride} {
    EXPECT_OK(backend.synchronize());
    EXPECT_OK(cuda::encode_input({.x = x.data(), .x_stride = width, .to = rows, .tokens = tokens}, 0,
                                 static_cast<cudaStream_t>(backend.native_stream())));
  }
};

// A backend whose products are of E4M3, beside the exact one, on a device that has them.
class Fp8ProductsGpuTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    device_ = describe_gpu();
    ASSERT_NE(device_, nullptr);
    if (!device_->has_sm90a()) GTEST_SKIP() << "weights are not packed in tiles here";
    auto backend = create_cuda_backend({.device = 0, .linear_precision = LinearPrecision::kFp8});
    ASSERT_OK(backend);
    fp8_ = std::move(backend).value();
    ASSERT_OK(fp8_->reserve_scratch(kScratchBytes));
    ASSERT_OK(gpu().reserve_scratch(kScratchBytes));
    auto memory = fp8_->allocate(kScratchBytes, "scratch");
    ASSERT_OK(memory);
    memory_ = std::move(memory).value();
    scratch_ = cuda::Scratch(memory_.data(), memory_.size());
  }

  std::unique_ptr<const cuda::CudaDevice> device_;
  std::unique_ptr<Backend> fp8_;
  Buffer memory_;
  cuda::Scratch scratch_;
};

}  // namespace dsv4rt::test
