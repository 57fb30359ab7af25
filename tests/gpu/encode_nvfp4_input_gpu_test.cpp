// Inputs encoded to NVFP4 for cuBLASLt, on any GPU: the bytes of the codec, scales in tiles, zeros around them.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "backend/cuda/kernels/linear/cublaslt/encode_nvfp4_input.h"
#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "gpu/support/gpu.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::test {
namespace {

using EncodeNvfp4InputGpuTest = GpuTest;
using Bytes = std::vector<std::uint8_t>;

// Any BF16: stretches of like magnitude and of all magnitudes, NaN, infinities, zeros and subnormals among them.
std::vector<bf16> inputs_of_every_kind(std::size_t count, std::uint32_t seed) {
  constexpr std::size_t kKindValues = 16;
  std::mt19937 random(seed);
  std::vector<bf16> values(count);
  for (std::size_t first = 0; first < count; first += kKindValues) {
    const auto kind = static_cast<std::uint32_t>(random() % 8);
    const auto exponent = static_cast<std::uint32_t>(random() % 255);
    for (std::size_t i = first; i < std::min(count, first + kKindValues); ++i) {
      const auto bits = static_cast<std::uint32_t>(random());
      const std::uint32_t like = (bits & 0x807fU) | (exponent + (bits >> 16) % 3) << 7;
      const std::uint32_t near_one = (bits & 0x807fU) | (120 + (bits >> 16) % 12) << 7;
      values[i] = {static_cast<std::uint16_t>(kind == 0   ? bits
                                              : kind == 1 ? bits & 0x8000U
                                              : kind < 4  ? like
                                                          : near_one)};
    }
  }
  return values;
}

struct Encoded {
  Bytes codes;
  Bytes scales;
};

Encoded encode_on_cpu(const std::vector<bf16>& x, std::int64_t stride, std::int32_t tokens, std::int32_t inputs,
                      float global_scale) {
  const std::int64_t groups = inputs / kNvfp4GroupValues;
  Encoded out{Bytes(static_cast<std::size_t>(tokens * inputs / 2)),
              Bytes(static_cast<std::size_t>(cuda::nvfp4_scale_bytes(tokens, groups)))};
  for (std::int32_t token = 0; token < tokens; ++token) {
    for (std::int64_t group = 0; group < groups; ++group) {
      std::array<float, kNvfp4GroupValues> values;
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = to_float(x[static_cast<std::size_t>(token * stride + group * kNvfp4GroupValues) + i]);
      }
      auto* codes = reinterpret_cast<std::byte*>(out.codes.data()) + (token * groups + group) * kNvfp4GroupBytes;
      out.scales[static_cast<std::size_t>(cuda::nvfp4_scale_offset(token, group, groups))] =
          encode_nvfp4_group(values.data(), codes, global_scale);
    }
  }
  return out;
}

TEST_F(EncodeNvfp4InputGpuTest, BytesOfTheCodec) {
  auto* stream = static_cast<cudaStream_t>(gpu().native_stream());
  std::uint32_t seed = 1;
  for (const std::int32_t inputs : {32, 96, 1024, 4096}) {
    for (const std::int32_t tokens : {1, 7, 128, 300}) {
      for (const float global_scale : {1.0F, 0x1p-6F, 0.0123F, 3.7e-4F, 2.6e5F}) {
        const std::int64_t stride = inputs + 8;
        const auto x = inputs_of_every_kind(static_cast<std::size_t>(tokens * stride + 8), ++seed);
        const Encoded expected = encode_on_cpu(x, stride, tokens, inputs, global_scale);
        const DeviceArray<bf16> device_x(gpu(), x);
        const DeviceArray<std::uint8_t> codes(gpu(), Bytes(expected.codes.size() + 8, 0xa5));
        const DeviceArray<std::uint8_t> scales(gpu(), Bytes(expected.scales.size() + 8, 0xa5));
        ASSERT_OK(cuda::encode_nvfp4_input({.x = device_x.data(),
                                            .x_stride = stride,
                                            .codes = codes.data(),
                                            .scales = scales.data(),
                                            .global_scale = global_scale,
                                            .tokens = tokens,
                                            .inputs = inputs},
                                           stream));
        Bytes padded_codes = expected.codes;
        Bytes padded_scales = expected.scales;
        for (Bytes* bytes : {&padded_codes, &padded_scales}) bytes->resize(bytes->size() + 8, 0xa5);
        ASSERT_EQ(codes.download(), padded_codes) << inputs << " inputs, T " << tokens << ", scale " << global_scale;
        ASSERT_EQ(scales.download(), padded_scales) << inputs << " inputs, T " << tokens << ", scale " << global_scale;
      }
    }
  }
}

}  // namespace
}  // namespace dsv4rt::test
