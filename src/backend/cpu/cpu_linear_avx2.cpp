// The linear kernel for AVX2, FMA and F16C. Compiled with those instructions enabled.
#include <immintrin.h>

#include "backend/cpu/cpu_linear_kernel.h"

namespace dsv4rt::cpu {
namespace {

struct Avx2Vector {
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxAccumulators = 6;  // pairs of registers, of 16 registers

  struct Reg {
    __m256 low;   // lanes 0..7
    __m256 high;  // lanes 8..15
  };

  // Subnormals count as zero in the calling thread while it lives.
  class FlushScope {
   public:
    FlushScope() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
    ~FlushScope() { _mm_setcsr(saved_); }
    FlushScope(const FlushScope&) = delete;
    FlushScope& operator=(const FlushScope&) = delete;

   private:
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

  static void decode_bf16(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                          std::int64_t stride) {
    const std::uint8_t* codes = block.weight.codes + group * block.weight.group_bytes + k * kGroupOutputs * 2;
    const __m256i odd_mask = _mm256_set1_epi32(static_cast<int>(0xffff0000U));
    for (int i = 0; i < depth; i += 2, codes += 64, panel += 2 * stride) {
      for (int half = 0; half < 2; ++half) {
        const __m256i pair = load_codes(codes + half * 32);
        _mm256_storeu_ps(panel + half * 8, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
        _mm256_storeu_ps(panel + stride + half * 8, _mm256_castsi256_ps(_mm256_and_si256(pair, odd_mask)));
      }
    }
  }

  // E4M3 in the high bytes of words to FP16 of 2^-8 times the value; NaN stays NaN.
  static __m256i e4m3_to_half(__m256i words) {
    const __m256i magnitude_mask = _mm256_set1_epi16(0x3f80);
    const __m256i half =
        _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
    const __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(half, magnitude_mask), magnitude_mask);
    return _mm256_or_si256(half, _mm256_and_si256(nan, _mm256_set1_epi16(0x7e00)));
  }

  static void decode_fp8(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                         std::int64_t stride) {
    const PackedView& weight = block.weight;
    const std::uint8_t* codes = weight.codes + group * weight.group_bytes + k * kGroupOutputs;
    const int scale_code = weight.scales[group * weight.scale_columns + k / kBlockDepth];
    const __m256 scale = _mm256_castsi256_ps(_mm256_set1_epi32((scale_code + 8) << 23));
    for (int i = 0; i < depth; i += 4, codes += 64, panel += 4 * stride) {
      for (int side = 0; side < 2; ++side) {  // lanes 0..7, 8..15
        // Words hold two inputs of one lane; the halves of a 128-bit part hold inputs 0, 1 and 2, 3.
        const __m256i words = _mm256_permute4x64_epi64(load_codes(codes + side * 32), 0xd8);
        const __m256i even = e4m3_to_half(_mm256_slli_epi16(words, 8));
        const __m256i odd = e4m3_to_half(words);
        float* to = panel + side * 8;
        _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(even)), scale));
        _mm256_storeu_ps(to + stride, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(odd)), scale));
        _mm256_storeu_ps(to + 2 * stride, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(even, 1)), scale));
        _mm256_storeu_ps(to + 3 * stride, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(odd, 1)), scale));
      }
    }
  }

  static void decode_nvfp4(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                           std::int64_t stride) {
    const PackedView& weight = block.weight;
    const std::uint8_t* codes = weight.codes + group * weight.group_bytes + k * kGroupOutputs / 2;
    const std::uint8_t* scales =
        weight.scales + (group * weight.scale_columns + k / kNvfp4GroupInputs) * kGroupOutputs;
    const __m256 magnitudes = _mm256_loadu_ps(block.e2m1_values);
    const __m256i sign_mask = _mm256_set1_epi32(static_cast<int>(0x80000000U));
    for (int i = 0; i < depth; i += kNvfp4GroupInputs, scales += kGroupOutputs) {
      const __m256i scale_words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
      const __m256i scale_halves = e4m3_to_half(_mm256_slli_epi16(scale_words, 8));
      const __m256 unbias = _mm256_set1_ps(256.0F);
      const __m256 scale[2] = {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(scale_halves)), unbias),
                               _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(scale_halves, 1)), unbias)};
      for (int part = 0; part < 2; ++part, codes += 64) {
        for (int side = 0; side < 2; ++side) {
          __m256i code = load_codes(codes + side * 32);
          float* to = panel + part * 8 * stride + side * 8;
          for (int j = 0; j < 8; ++j, to += stride) {
            // The permutation reads the low three bits of every lane, the magnitude.
            const __m256 magnitude = _mm256_permutevar8x32_ps(magnitudes, code);
            const __m256 sign = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(code, 28), sign_mask));
            _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_or_ps(magnitude, sign), scale[side]));
            code = _mm256_srli_epi32(code, 4);
          }
        }
      }
      panel += kNvfp4GroupInputs * stride;
    }
  }
};

}  // namespace

void linear_block_avx2(const LinearBlock& block) { linear_block<Avx2Vector>(block); }

}  // namespace dsv4rt::cpu
