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
  static constexpr int kMaxDirectAccumulators = 0;

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
      const double exact =
          static_cast<double>(weight.lane[n]) * static_cast<double>(x) + static_cast<double>(sum.lane[n]);
      const float rounded = static_cast<float>(exact);
      result.lane[n] = __builtin_fabs(exact) < kTiny ? __builtin_copysignf(0.0F, rounded) : rounded;
    }
    return result;
  }

  struct Bf16 {
    static constexpr int kInputs = 2;
    Bf16(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : codes(block.weight.codes + group * block.weight.group_bytes + k * 32) {}
    void decode(int line, int, Reg* weight) const {
      for (int n = 0; n < kGroupOutputs; ++n) {
        std::uint32_t pair;
        __builtin_memcpy(&pair, codes + line * kLineBytes + n * 4, sizeof pair);
        const std::uint32_t bits[2] = {pair << 16, pair & 0xffff0000U};
        for (int i = 0; i < 2; ++i) {
          __builtin_memcpy(&weight[i].lane[n], &bits[i], sizeof bits[i]);
          weight[i].lane[n] = flush_to_zero(weight[i].lane[n]);
        }
      }
    }
    const std::uint8_t* codes;
  };

  struct Fp8 {
    static constexpr int kInputs = 4;
    Fp8(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : codes(block.weight.codes + group * block.weight.group_bytes + k * 16), values(block.e4m3_values) {
      const PackedView& weight = block.weight;
      const std::uint32_t bits = std::uint32_t{weight.scales[group * weight.scale_columns + k / kBlockDepth]} << 23;
      __builtin_memcpy(&scale, &bits, sizeof scale);
    }
    void decode(int line, int, Reg* weight) const {
      for (int i = 0; i < kInputs; ++i) {
        for (int n = 0; n < kGroupOutputs; ++n) {
          const int byte = n / 4 * 16 + i / 2 * 8 + n % 4 * 2 + i % 2;
          weight[i].lane[n] = values[codes[line * kLineBytes + byte]] * scale;
        }
      }
    }
    const std::uint8_t* codes;
    const float* values;
    float scale;
  };

  struct Nvfp4 {
    static constexpr int kInputs = 8;
    Nvfp4(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : codes(block.weight.codes + group * block.weight.group_bytes + k * 8),
          scales(block.weight.scales + (group * block.weight.scale_columns + k / kNvfp4GroupInputs) * kGroupOutputs),
          e2m1_values(block.e2m1_values),
          e4m3_values(block.e4m3_values) {}
    void decode(int line, int, Reg* weight) const {
      for (int n = 0; n < kGroupOutputs; ++n) {
        const float scale = e4m3_values[scales[line / 2 * kGroupOutputs + n]];
        for (int i = 0; i < kInputs; ++i) {
          const int code = codes[line * kLineBytes + n * 4 + i / 2] >> (i % 2 * 4) & 0xf;
          weight[i].lane[n] = e2m1_values[code] * scale;
        }
      }
    }
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    const float* e2m1_values;
    const float* e4m3_values;
  };
};

}  // namespace

void linear_block_portable(const LinearBlock& block) {
  linear_block<PortableVector>(block);
}

}  // namespace dsv4rt::cpu
