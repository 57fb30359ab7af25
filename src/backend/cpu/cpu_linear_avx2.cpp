// The linear kernel for AVX2, FMA and F16C. Compiled with those instructions enabled.
#include <immintrin.h>

#include "backend/cpu/cpu_linear_kernel.h"

namespace dsv4rt::cpu {
namespace {

struct Avx2Vector {
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxAccumulators = 6;  // pairs of registers, of 16 registers
  static constexpr int kMaxDirectAccumulators = 0;

  struct Reg {
    __m256 low;   // lanes 0..7
    __m256 high;  // lanes 8..15
  };

  // Subnormals count as zero in the calling thread while it lives.
  class FlushScope {
   public:
    FlushScope() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kFlushToZero | kSubnormalsAreZero); }
    ~FlushScope() { _mm_setcsr(saved_); }
    FlushScope(const FlushScope&) = delete;
    FlushScope& operator=(const FlushScope&) = delete;

   private:
    static constexpr unsigned kFlushToZero = 0x8000;  // MXCSR bits
    static constexpr unsigned kSubnormalsAreZero = 0x0040;
    unsigned saved_;
  };

  static Reg load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static void store(float* to, Reg value) {
    _mm256_storeu_ps(to, value.low);
    _mm256_storeu_ps(to + 8, value.high);
  }
  static __m256 broadcast(const float* from) { return _mm256_broadcast_ss(from); }
  static Reg fma(Reg weight, __m256 x, Reg sum) {
    return {_mm256_fmadd_ps(weight.low, x, sum.low), _mm256_fmadd_ps(weight.high, x, sum.high)};
  }

  static __m256i load_codes(const std::uint8_t* codes) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  }

  struct Bf16 {
    static constexpr int kInputs = 2;
    Bf16(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : codes(block.weight.codes + group * block.weight.group_bytes + k * 32) {}
    void decode(int line, int, Reg* weight) const {
      const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
      const __m256i low = load_codes(codes + line * kLineBytes);
      const __m256i high = load_codes(codes + line * kLineBytes + 32);
      weight[0] = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
      weight[1] = {_mm256_castsi256_ps(_mm256_and_si256(low, odd_mask)),
                   _mm256_castsi256_ps(_mm256_and_si256(high, odd_mask))};
    }
    const std::uint8_t* codes;
  };

  // E4M3 in the high bytes of words to FP16 of 2^-8 times the value; NaN stays NaN.
  static __m256i e4m3_to_half(__m256i words) {
    const __m256i magnitude_mask = _mm256_set1_epi16(0x3f80);
    const __m256i half = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude_mask), magnitude_mask);
    return _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  }

  static __m256 low_half(__m256i halves) { return _mm256_cvtph_ps(_mm256_castsi256_si128(halves)); }
  static __m256 high_half(__m256i halves) { return _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)); }
  static Reg scaled(__m256 low, __m256 high, Reg scale) {
    return {_mm256_mul_ps(low, scale.low), _mm256_mul_ps(high, scale.high)};
  }

  struct Fp8 {
    static constexpr int kInputs = 4;
    Fp8(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : codes(block.weight.codes + group * block.weight.group_bytes + k * 16) {
      const int scale_code = block.weight.scales[group * block.weight.scale_columns + k / kBlockDepth];
      const __m256 both = _mm256_castsi256_ps(_mm256_set1_epi32((scale_code + 8) << 23));
      scale = {both, both};
    }
    void decode(int line, int, Reg* weight) const {
      // Words hold two inputs of one lane; the halves of a 128-bit part hold inputs 0, 1 and 2, 3.
      const __m256i low = _mm256_permute4x64_epi64(load_codes(codes + line * kLineBytes), 0xd8);
      const __m256i high = _mm256_permute4x64_epi64(load_codes(codes + line * kLineBytes + 32), 0xd8);
      const __m256i low_even = e4m3_to_half(_mm256_slli_epi16(low, 8));
      const __m256i high_even = e4m3_to_half(_mm256_slli_epi16(high, 8));
      const __m256i low_odd = e4m3_to_half(low);
      const __m256i high_odd = e4m3_to_half(high);
      weight[0] = scaled(low_half(low_even), low_half(high_even), scale);
      weight[1] = scaled(low_half(low_odd), low_half(high_odd), scale);
      weight[2] = scaled(high_half(low_even), high_half(high_even), scale);
      weight[3] = scaled(high_half(low_odd), high_half(high_odd), scale);
    }
    const std::uint8_t* codes;
    Reg scale;
  };

  struct Nvfp4 {
    static constexpr int kInputs = 8;
    Nvfp4(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : codes(block.weight.codes + group * block.weight.group_bytes + k * 8),
          scales(block.weight.scales + (group * block.weight.scale_columns + k / kNvfp4GroupInputs) * kGroupOutputs),
          magnitudes(_mm256_loadu_ps(block.e2m1_values)) {}
    // The permutation reads the low three bits of every lane, the magnitude.
    __m256 value(__m256i code) const {
      const __m256i sign = _mm256_and_si256(_mm256_slli_epi32(code, 28), _mm256_set1_epi32(static_cast<int>(1U << 31)));
      return _mm256_or_ps(_mm256_permutevar8x32_ps(magnitudes, code), _mm256_castsi256_ps(sign));
    }
    void decode(int line, int, Reg* weight) const {
      const std::uint8_t* from = scales + line / 2 * kGroupOutputs;
      const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      const __m256i halves = e4m3_to_half(_mm256_slli_epi16(words, 8));
      const __m256 unbias = _mm256_set1_ps(256.0F);
      const Reg scale = scaled(low_half(halves), high_half(halves), {unbias, unbias});
      const __m256i low = load_codes(codes + line * kLineBytes);
      const __m256i high = load_codes(codes + line * kLineBytes + 32);
#pragma GCC unroll 8
      for (int i = 0; i < kInputs; ++i) {
        weight[i] = scaled(value(_mm256_srli_epi32(low, 4 * i)), value(_mm256_srli_epi32(high, 4 * i)), scale);
      }
    }
    const std::uint8_t* codes;
    const std::uint8_t* scales;
    __m256 magnitudes;
  };
};

}  // namespace

void linear_block_avx2(const LinearBlock& block) {
  linear_block<Avx2Vector>(block);
}

}  // namespace dsv4rt::cpu
