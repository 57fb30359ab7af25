// The linear kernel for AVX-512 F, BW, DQ, VL and VBMI. Compiled with those instructions enabled.
#include <immintrin.h>

#include "backend/cpu/cpu_linear_kernel.h"

namespace dsv4rt::cpu {
namespace {

struct Avx512Vector {
  static constexpr int kMaxRows = 8;
  static constexpr int kMaxAccumulators = 24;  // a register each; there are 32
  static constexpr int kMaxDirectAccumulators = 16;

  using Reg = __m512;

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

  static Reg load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Reg value) { _mm512_storeu_ps(to, value); }
  static Reg broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static Reg fma(Reg weight, Reg x, Reg sum) { return _mm512_fmadd_ps(weight, x, sum); }

  // How far ahead of its use a line is fetched: what one core reads during a memory latency.
  static constexpr int kAheadBytes = 16 * kLineBytes;

  // Pairs of BF16 (even input low) to FP32.
  static void widen_pair(__m512i pair, Reg* weight) {
    const __m512i odd_mask = _mm512_set1_epi32(static_cast<int>(0xffff0000U));
    weight[0] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
    weight[1] = _mm512_castsi512_ps(_mm512_and_si512(pair, odd_mask));
  }

  // Where a decoder stands in the codes.
  struct Position {
    Position(const PackedView& weight, std::int64_t group, std::int64_t byte)
        : codes(weight.codes + group * weight.group_bytes + byte), group_bytes(weight.group_bytes) {}
    __m512i line(int index, int g) const {
      const std::uint8_t* at = codes + g * group_bytes + index * kLineBytes;
      __builtin_prefetch(at + kAheadBytes);
      return _mm512_loadu_si512(at);
    }
    const std::uint8_t* codes;
    std::int64_t group_bytes;
  };

  struct Bf16 {
    static constexpr int kInputs = 2;
    Bf16(const LinearBlock& block, std::int64_t group, std::int64_t k) : at(block.weight, group, k * 32) {}
    void decode(int line, int g, Reg* weight) const { widen_pair(at.line(line, g), weight); }
    Position at;
  };

  // Looks up the high and low bytes of BF16(code) * scale and interleaves them to pairs.
  struct Fp8 {
    static constexpr int kInputs = 4;
    Fp8(const LinearBlock& block, std::int64_t group, std::int64_t k) : at(block.weight, group, k * 16) {
      const PackedView& weight = block.weight;
      const int scale_code = weight.scales[group * weight.scale_columns + k / kBlockDepth];
      const std::uint8_t* tables = block.fp8_tables + (scale_code - kMinFp8ScaleCode) * 256;
      high[0] = _mm512_loadu_si512(tables);
      high[1] = _mm512_loadu_si512(tables + 64);
      low[0] = _mm512_loadu_si512(tables + 128);
      low[1] = _mm512_loadu_si512(tables + 192);
    }
    void decode(int line, int g, Reg* weight) const {
      const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
      const __m512i code = at.line(line, g);
      const __m512i low_bytes = _mm512_permutex2var_epi8(low[0], code, low[1]);
      const __m512i magnitude = _mm512_permutex2var_epi8(high[0], code, high[1]);
      const __m512i high_bytes = _mm512_ternarylogic_epi32(magnitude, code, sign, 0xf8);  // magnitude | code & sign
      widen_pair(_mm512_unpacklo_epi8(low_bytes, high_bytes), weight);
      widen_pair(_mm512_unpackhi_epi8(low_bytes, high_bytes), weight + 2);
    }
    Position at;
    __m512i high[2];
    __m512i low[2];
  };

  struct Nvfp4 {
    static constexpr int kInputs = 8;
    Nvfp4(const LinearBlock& block, std::int64_t group, std::int64_t k)
        : at(block.weight, group, k * 8),
          scales(block.weight.scales + (group * block.weight.scale_columns + k / kNvfp4GroupInputs) * kGroupOutputs),
          scale_stride(block.weight.scale_columns * kGroupOutputs),
          values(_mm512_loadu_ps(block.e2m1_values)) {}
    void decode(int line, int g, Reg* weight) const {
      // E4M3 as FP16 of 2^-8 times the value: subnormals need no special care.
      const std::uint8_t* from = scales + g * scale_stride + line / 2 * kGroupOutputs;
      const __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
      const __m256i shifted = _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 1);
      const __m256i half = _mm256_and_si256(shifted, _mm256_set1_epi16(static_cast<short>(0xbf80)));
      const __m512 scale = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0F));
      const __m512i code = at.line(line, g);
#pragma GCC unroll 8
      for (int i = 0; i < kInputs; ++i) {
        // The permutation reads the low four bits of every lane only.
        const __m512i index = _mm512_srli_epi32(code, static_cast<unsigned>(4 * i));
        weight[i] = _mm512_mul_ps(_mm512_permutexvar_ps(index, values), scale);
      }
    }
    Position at;
    const std::uint8_t* scales;
    std::int64_t scale_stride;
    __m512 values;
  };
};

}  // namespace

void linear_block_avx512(const LinearBlock& block) {
  linear_block<Avx512Vector>(block);
}

}  // namespace dsv4rt::cpu
