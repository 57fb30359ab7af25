// Row kernels for AVX-512. Built with those instructions enabled; called only where the processor has them.
//
// FP32 multiply-adds on purpose: VDPBF16PS has half of their throughput per value on Sapphire Rapids
// (one every two cycles against two FMAs a cycle), and rounds its sums differently.
#include "backend/cpu/row_kernels_impl.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include <immintrin.h>

namespace dsv4rt::cpu {
namespace {

struct Avx512Machine {
  static constexpr int kLanes = 16;
  static constexpr bool kDecodes = true;
  static constexpr int kWideHeadVectors = 2;
  static constexpr int kWideRows = 12;
  static constexpr int kNarrowRows = 12;
  static constexpr int kSumHeads = 8;
  static constexpr int kSumVectors = 2;
  using Float = LanesOf<kLanes>::Float;

  [[gnu::always_inline]] static Float load(const float* from) { return (Float)_mm512_loadu_ps(from); }
  [[gnu::always_inline]] static void store(float* to, Float value) { _mm512_storeu_ps(to, (__m512)value); }
  [[gnu::always_inline]] static Float broadcast(const float* from) { return (Float)_mm512_set1_ps(*from); }
  [[gnu::always_inline]] static Float multiply_add(Float a, Float b, Float c) {
    return (Float)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
  }

  // The code's bits placed in an FP16 give its value times 2^-8 (subnormals included, exponent bias 15
  // instead of 7); code 0x7f becomes an FP16 NaN.
  [[gnu::always_inline]] static Float e4m3(const std::uint8_t* codes) {
    const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
    const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f));
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
    const __m256i shifted = _mm256_mask_mov_epi16(_mm256_slli_epi16(magnitude, 7), nan, _mm256_set1_epi16(0x7e00));
    return (Float)_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(shifted, sign)), _mm512_set1_ps(256.0f));
  }

  [[gnu::always_inline]] static Float e2m1(const std::uint8_t* codes) {
    // Each byte in a 64-bit lane; its high nibble moves to the upper half; the permute reads 4 bits.
    const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)));
    const __m512i nibbles = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
    const __m512 values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                         -2.0f, -3.0f, -4.0f, -6.0f);
    return (Float)_mm512_permutexvar_ps(nibbles, values);
  }

  [[gnu::always_inline]] static Float bf16_values(const std::uint8_t* bytes) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
    return (Float)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
  }

  // Two values of 16 heads per gather.
  static void transpose_heads(const bf16* x, int dims, int padded, float* columns) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i offset = _mm512_mullo_epi32(lane, _mm512_set1_epi32(dims * 2));
    const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    const auto* base = reinterpret_cast<const char*>(x);
    for (int d = 0; d < dims; d += 2) {
      const __m512i pair = _mm512_i32gather_epi32(offset, base + 2 * d, 1);
      float* column = columns + std::int64_t{d} * padded;
      _mm512_storeu_ps(column, _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)));
      _mm512_storeu_ps(column + padded, _mm512_castsi512_ps(_mm512_and_si512(pair, high)));
    }
  }
};

constexpr RowKernels kKernels = RowKernelsOf<Avx512Machine>::table();

}  // namespace

const RowKernels* avx512_row_kernels() {
  return &kKernels;
}

}  // namespace dsv4rt::cpu

#else

namespace dsv4rt::cpu {
const RowKernels* avx512_row_kernels() {
  return nullptr;
}
}  // namespace dsv4rt::cpu

#endif
