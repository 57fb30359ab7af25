// The linear kernel for AVX-512 F, BW, DQ, VL and VBMI. Compiled with those instructions enabled.
#include <immintrin.h>

#include "backend/cpu/cpu_linear_kernel.h"

namespace dsv4rt::cpu {
namespace {

struct Avx512Vector {
  static constexpr int kMaxRows = 8;
  static constexpr int kMaxAccumulators = 24;  // of 32 registers

  using Reg = __m512;

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

  static Reg load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Reg value) { _mm512_storeu_ps(to, value); }
  static Reg broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Reg fma(Reg weight, Reg x, Reg sum) { return _mm512_fmadd_ps(weight, x, sum); }

  // Pairs of BF16 (even input low) to two rows of FP32.
  static void store_pair(__m512i pair, float* panel, std::int64_t stride) {
    const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    _mm512_storeu_si512(panel, _mm512_slli_epi32(pair, 16));
    _mm512_storeu_si512(panel + stride, _mm512_and_si512(pair, odd_mask));
  }

  static void decode_bf16(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                          std::int64_t stride) {
    const std::uint8_t* codes = block.weight.codes + group * block.weight.group_bytes + k * kGroupOutputs * 2;
    const std::int64_t ahead = std::int64_t{depth} * kGroupOutputs * 2;  // this group's next visit
    for (int i = 0; i < depth; i += 2, codes += 64, panel += 2 * stride) {
      __builtin_prefetch(codes + ahead);
      store_pair(_mm512_loadu_si512(codes), panel, stride);
    }
  }

  static void decode_fp8(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                         std::int64_t stride) {
    const PackedView& weight = block.weight;
    const std::uint8_t* codes = weight.codes + group * weight.group_bytes + k * kGroupOutputs;
    const std::int64_t ahead = std::int64_t{depth} * kGroupOutputs;  // this group's next visit
    const int scale_code = weight.scales[group * weight.scale_columns + k / kBlockDepth];
    const std::uint8_t* tables = block.fp8_tables + (scale_code - kMinFp8ScaleCode) * 256;
    const __m512i high_table[2] = {_mm512_loadu_si512(tables), _mm512_loadu_si512(tables + 64)};
    const __m512i low_table[2] = {_mm512_loadu_si512(tables + 128), _mm512_loadu_si512(tables + 192)};
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
    for (int i = 0; i < depth; i += 4, codes += 64, panel += 4 * stride) {
      __builtin_prefetch(codes + ahead);
      const __m512i code = _mm512_loadu_si512(codes);
      const __m512i low = _mm512_permutex2var_epi8(low_table[0], code, low_table[1]);
      const __m512i magnitude = _mm512_permutex2var_epi8(high_table[0], code, high_table[1]);
      const __m512i high = _mm512_ternarylogic_epi32(magnitude, code, sign, 0xf8);  // magnitude | (code & sign)
      store_pair(_mm512_unpacklo_epi8(low, high), panel, stride);
      store_pair(_mm512_unpackhi_epi8(low, high), panel + 2 * stride, stride);
    }
  }

  // E4M3 as FP16 of 2^-8 times the value: subnormals need no special care.
  static __m512 decode_scales(const std::uint8_t* scales) {
    const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(scales)));
    const __m256i shifted = _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 1);
    const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbf80)));
    return _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0F));
  }

  static void decode_nvfp4(const LinearBlock& block, std::int64_t group, std::int64_t k, int depth, float* panel,
                           std::int64_t stride) {
    const PackedView& weight = block.weight;
    const std::uint8_t* codes = weight.codes + group * weight.group_bytes + k * kGroupOutputs / 2;
    const std::uint8_t* scales =
        weight.scales + (group * weight.scale_columns + k / kNvfp4GroupInputs) * kGroupOutputs;
    const std::int64_t ahead = std::int64_t{depth} * kGroupOutputs / 2;  // this group's next visit
    const __m512 values = _mm512_loadu_ps(block.e2m1_values);
    for (int i = 0; i < depth; i += kNvfp4GroupInputs, scales += kGroupOutputs) {
      const __m512 scale = decode_scales(scales);
      for (int part = 0; part < 2; ++part, codes += 64) {
        __builtin_prefetch(codes + ahead);
        __m512i code = _mm512_loadu_si512(codes);
        for (int j = 0; j < 8; ++j, panel += stride) {
          // The permutation reads the low four bits of every lane only.
          _mm512_storeu_ps(panel, _mm512_mul_ps(_mm512_permutexvar_ps(code, values), scale));
          code = _mm512_srli_epi32(code, 4);
        }
      }
    }
  }
};

}  // namespace

void linear_block_avx512(const LinearBlock& block) { linear_block<Avx512Vector>(block); }

}  // namespace dsv4rt::cpu
