// The linear kernel in plain C++: the arithmetic of cpu_linear_kernel.h spelled out.
#include "backend/cpu/cpu_linear_kernel.h"

namespace dsv4rt::cpu {
namespace {

constexpr float kMinNormal = 0x1p-126F;

float flush_to_zero(float value) {
  return __builtin_fabsf(value) < kMinNormal ? __builtin_copysignf(0.0F, value) : value;
}

struct PortableVector {
  static constexpr int kMaxRows = 4;
  static constexpr int kMaxAccumulators = 4;

  struct Reg {
    float lane[kGroupOutputs];
  };
  struct FlushScope {
    FlushScope() {}  // fma() below flushes by itself
  };

  static Reg load(const float* from) {
    Reg value;
    __builtin_memcpy(value.lane, from, sizeof value.lane);
    return value;
  }
  static void store(float* to, const Reg& value) { __builtin_memcpy(to, value.lane, sizeof value.lane); }
  static float broadcast(const float* from) { return flush_to_zero(*from); }

  // A product of two BF16 values has 16 significant bits and the sum of such a product and an FP32
  // value is exact in double wherever it comes near a rounding boundary of FP32, so rounding it once
  // more to FP32 gives the fused result. A result is subnormal if it is below the smallest normal
  // number after rounding to 24 bits without a limit of the exponent, as x86 defines it.
  static Reg fma(const Reg& weight, float x, const Reg& sum) {
    constexpr double kTiny = 0x1p-126 - 0x1p-151;
    Reg result;
    for (int n = 0; n < kGroupOutputs; ++n) {
      const double exact = static_cast<double>(weight.lane[n]) * static_cast<double>(x) +
                           static_cast<double>(sum.lane[n]);
      const float rounded = static_cast<float>(exact);
      result.lane[n] = __builtin_fabs(exact) < kTiny ? __builtin_copysignf(0.0F, rounded) : rounded;
    }
    return result;
  }

  static void decode_bf16(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                          std::int64_t stride) {
    const std::uint8_t* codes = block.weight.codes + group * block.weight.group_bytes + k * kGroupOutputs * 2;
    for (int i = 0; i < depth; ++i) {
      for (int n = 0; n < kGroupOutputs; ++n) {
        std::uint16_t half;
        __builtin_memcpy(&half, codes + (i / 2 * kGroupOutputs + n) * 4 + i % 2 * 2, sizeof half);
        const std::uint32_t bits = std::uint32_t{half} << 16;
        float value;
        __builtin_memcpy(&value, &bits, sizeof value);
        panel[i * stride + n] = flush_to_zero(value);
      }
    }
  }

  static void decode_fp8(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                         std::int64_t stride) {
    const PackedView& weight = block.weight;
    const std::uint8_t* codes = weight.codes + group * weight.group_bytes + k * kGroupOutputs;
    const std::uint32_t scale_bits = std::uint32_t{weight.scales[group * weight.scale_columns + k / kBlockDepth]} << 23;
    float scale;
    __builtin_memcpy(&scale, &scale_bits, sizeof scale);
    for (int i = 0; i < depth; ++i) {
      for (int n = 0; n < kGroupOutputs; ++n) {
        const int byte = i / 4 * 64 + n / 4 * 16 + i % 4 / 2 * 8 + n % 4 * 2 + i % 2;
        panel[i * stride + n] = block.e4m3_values[codes[byte]] * scale;
      }
    }
  }

  static void decode_nvfp4(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                           std::int64_t stride) {
    const PackedView& weight = block.weight;
    const std::uint8_t* codes = weight.codes + group * weight.group_bytes + k * kGroupOutputs / 2;
    const std::uint8_t* scales =
        weight.scales + (group * weight.scale_columns + k / kNvfp4GroupInputs) * kGroupOutputs;
    for (int i = 0; i < depth; ++i) {
      for (int n = 0; n < kGroupOutputs; ++n) {
        const int code = codes[i / 8 * 64 + n * 4 + i % 8 / 2] >> (i % 2 * 4) & 0xf;
        const float scale = block.e4m3_values[scales[i / kNvfp4GroupInputs * kGroupOutputs + n]];
        panel[i * stride + n] = block.e2m1_values[code] * scale;
      }
    }
  }
};

}  // namespace

void linear_block_portable(const LinearBlock& block) { linear_block<PortableVector>(block); }

}  // namespace dsv4rt::cpu
