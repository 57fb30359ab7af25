// Row kernels for AVX2, FMA and F16C. Built with those instructions enabled; called only where the
// processor has them.
#include "backend/cpu/row_kernels_impl.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace dsv4rt::cpu {
namespace {

struct Avx2Machine {
  static constexpr int kLanes = 8;
  static constexpr bool kDecodes = true;
  static constexpr int kWideHeadVectors = 2;
  static constexpr int kWideRows = 6;
  static constexpr int kNarrowRows = 6;
  static constexpr int kSumHeads = 4;
  static constexpr int kSumVectors = 2;
  using Float = LanesOf<kLanes>::Float;

  [[gnu::always_inline]] static Float load(const float* from) { return (Float)_mm256_loadu_ps(from); }
  [[gnu::always_inline]] static void store(float* to, Float value) { _mm256_storeu_ps(to, (__m256)value); }
  [[gnu::always_inline]] static Float broadcast(const float* from) { return (Float)_mm256_broadcast_ss(from); }
  [[gnu::always_inline]] static Float multiply_add(Float a, Float b, Float c) {
    return (Float)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
  }

  // The code's bits placed in an FP16 give its value times 2^-8 (subnormals included, exponent bias 15
  // instead of 7); code 0x7f becomes an FP16 NaN.
  [[gnu::always_inline]] static Float e4m3(const std::uint8_t* codes) {
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m128i magnitude = _mm_and_si128(wide, _mm_set1_epi16(0x7f));
    const __m128i sign = _mm_slli_epi16(_mm_and_si128(wide, _mm_set1_epi16(0x80)), 8);
    const __m128i nan = _mm_and_si128(_mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f)), _mm_set1_epi16(0x7e00));
    const __m128i half = _mm_or_si128(_mm_or_si128(_mm_slli_epi16(magnitude, 7), sign), nan);
    return (Float)_mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(256.0f));
  }

  [[gnu::always_inline]] static Float e2m1(const std::uint8_t* codes) {
    std::int32_t packed;
    std::memcpy(&packed, codes, sizeof(packed));
    // Each byte in a 64-bit lane; its high nibble moves to the upper half.
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(packed));
    const __m256i nibbles = _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));
    const __m256 magnitudes = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const __m256 value = _mm256_permutevar8x32_ps(magnitudes, nibbles);
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(nibbles, _mm256_set1_epi32(8)), 28);
    return (Float)_mm256_or_ps(value, _mm256_castsi256_ps(sign));
  }

  [[gnu::always_inline]] static Float bf16_values(const std::uint8_t* bytes) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    return (Float)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
  }

  // Two values of 8 heads per gather.
  static void transpose_heads(const bf16* x, int dims, int padded, float* columns) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i offset = _mm256_mullo_epi32(lane, _mm256_set1_epi32(dims * 2));
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    for (int half = 0; half < kHeadLanes; half += kLanes) {
      const auto* base = reinterpret_cast<const char*>(x + std::int64_t{half} * dims);
      for (int d = 0; d < dims; d += 2) {
        const __m256i pair = _mm256_i32gather_epi32(reinterpret_cast<const int*>(base + 2 * d), offset, 1);
        float* column = columns + std::int64_t{d} * padded + half;
        _mm256_storeu_ps(column, _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)));
        _mm256_storeu_ps(column + padded, _mm256_castsi256_ps(_mm256_and_si256(pair, high)));
      }
    }
  }
};

constexpr RowKernels kKernels = RowKernelsOf<Avx2Machine>::table();

}  // namespace

const RowKernels* avx2_row_kernels() {
  return &kKernels;
}

}  // namespace dsv4rt::cpu

#else

namespace dsv4rt::cpu {
const RowKernels* avx2_row_kernels() {
  return nullptr;
}
}  // namespace dsv4rt::cpu

#endif
