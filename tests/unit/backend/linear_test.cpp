#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "backend/cpu/cpu_features.h"
#include "base/check.h"
#include "layout/rounding.h"
#include "support/test_backend.h"
#include "unit/backend/linear_matrix.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dsv4rt::test {
namespace {

constexpr WeightEncoding kEncodings[] = {WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4};

std::unique_ptr<Backend> make_backend(int threads, const std::string& max_isa = {}) {
  CpuBackendOptions options;
  options.threads = threads;
  options.max_isa = max_isa;
  auto backend = test::create_cpu_test_backend(options);
  EXPECT_TRUE(backend.ok()) << backend.status().to_string();
  return std::move(backend).value();
}

std::unique_ptr<PackedLinear> pack(Backend& backend, const HostLinear& host) {
  auto packed = backend.pack_linear(host);
  EXPECT_TRUE(packed.ok()) << packed.status().to_string();
  return std::move(packed).value();
}

// Levels that this processor runs, from the plain one up.
std::vector<std::string> isa_levels() {
  std::vector<std::string> names;
  for (int level = 0; level <= static_cast<int>(cpu::detect_isa_level()); ++level) {
    names.emplace_back(cpu::isa_level_name(static_cast<cpu::IsaLevel>(level)));
  }
  return names;
}

std::vector<bf16> random_inputs(std::int64_t count, std::uint32_t seed, int min_exponent = -6, int max_exponent = 3) {
  std::mt19937 random(seed);
  std::vector<bf16> x(static_cast<std::size_t>(count));
  for (bf16& value : x) value = random_bf16(random, min_exponent, max_exponent);
  return x;
}

std::vector<float> widen(const bf16* x, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = to_float(x[i]);
  return values;
}

// Dense FP32 result of the first `tokens` rows of x.
std::vector<float> run_f32(Backend& backend, const PackedLinear& weight, const bf16* x, std::int32_t tokens) {
  std::vector<float> y(static_cast<std::size_t>(tokens * weight.out_features()));
  const LinearCall call{x, weight.in_features(), &weight, y.data(), weight.out_features(), OutputType::kF32};
  EXPECT_TRUE(backend.ops().linear(tokens, std::span(&call, 1)).ok());
  return y;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Every instruction set gives the bits of the promised chain, for every encoding and awkward shape.
TEST(CpuLinear, IsTheFixedChainAtEveryLevel) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{8, 16}, {16, 48}, {40, 144}, {100, 272}, {200, 384}};
  for (const std::string& isa : isa_levels()) {
    const auto backend = make_backend(2, isa);
    for (const WeightEncoding encoding : kEncodings) {
      for (auto [out, in] : shapes) {
        if (encoding != WeightEncoding::kNvfp4) in -= 11;  // odd tails
        TestMatrix matrix;
        fill_matrix(matrix, encoding, ActivationRounding::kNone, out, in, 7);
        const auto weight = pack(*backend, matrix.host);
        EXPECT_EQ(weight->out_features(), out);
        EXPECT_EQ(weight->in_features(), in);
        EXPECT_GE(weight->bytes(), static_cast<std::int64_t>(matrix.weight.size()));
        for (const std::int32_t tokens : {1, 3, 6, 11}) {
          const auto x = random_inputs(tokens * in, 11);
          std::vector<float> expected;
          for (std::int64_t t = 0; t < tokens; ++t) {
            const auto row = widen(x.data() + t * in, in);
            for (std::int64_t n = 0; n < out; ++n) {
              expected.push_back(chain(matrix.values.data() + n * in, row.data(), in) * matrix.host.global_scale);
            }
          }
          EXPECT_TRUE(same_bits(run_f32(*backend, *weight, x.data(), tokens), expected))
              << isa << " encoding " << static_cast<int>(encoding) << " [" << out << ", " << in << "] T " << tokens;
        }
      }
    }
  }
}

// |error| <= in * 2^-24 * sum |w x| bounds any order of FP32 accumulation; one more rounding for the
// global scale and, for BF16 outputs, half a unit of 2^-8.
TEST(CpuLinear, IsCloseToDoublePrecision) {
  constexpr std::int64_t kOut = 96;
  constexpr std::int64_t kIn = 1024;
  constexpr std::int32_t kTokens = 5;
  const auto backend = make_backend(2);
  for (const WeightEncoding encoding : kEncodings) {
    TestMatrix matrix;
    fill_matrix(matrix, encoding, ActivationRounding::kNone, kOut, kIn, 3);
    const auto weight = pack(*backend, matrix.host);
    const auto x = random_inputs(kTokens * kIn, 5);
    const auto y = run_f32(*backend, *weight, x.data(), kTokens);
    std::vector<bf16> rounded(y.size());
    const LinearCall call{x.data(), kIn, weight.get(), rounded.data(), kOut, OutputType::kBf16};
    ASSERT_TRUE(backend->ops().linear(kTokens, std::span(&call, 1)).ok());
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t n = 0; n < kOut; ++n) {
        double exact = 0;
        double magnitude = 0;
        for (std::int64_t k = 0; k < kIn; ++k) {
          const double product = double{matrix.values[static_cast<std::size_t>(n * kIn + k)]} *
                                 double{to_float(x[static_cast<std::size_t>(t * kIn + k)])};
          exact += product;
          magnitude += std::fabs(product);
        }
        const double scale = double{matrix.host.global_scale};
        const auto index = static_cast<std::size_t>(t * kOut + n);
        EXPECT_NEAR(double{y[index]}, exact * scale, (kIn + 1) * 0x1p-24 * magnitude * scale);
        EXPECT_EQ(rounded[index].bits, to_bf16(y[index]).bits);
      }
    }
  }
}

// A row's result depends on nothing but the row: not on T, its place, its neighbours or the threads.
TEST(CpuLinear, RowsAreIndependentOfTokensThreadsAndPlace) {
  constexpr std::int64_t kOut = 216;
  constexpr std::int64_t kIn = 400;
  constexpr std::int32_t kMost = 300;
  for (const WeightEncoding encoding : kEncodings) {
    for (const ActivationRounding activation : {ActivationRounding::kNone, ActivationRounding::kFp8Block128}) {
      TestMatrix matrix;
      fill_matrix(matrix, encoding, activation, kOut, kIn, 21);
      const auto x = random_inputs(kMost * kIn, 22, -20, 8);
      const auto reference = make_backend(1);
      const auto expected = run_f32(*reference, *pack(*reference, matrix.host), x.data(), kMost);
      for (const int threads : {1, 2, 3, 5}) {
        const auto backend = make_backend(threads);
        const auto weight = pack(*backend, matrix.host);
        for (const std::int32_t tokens : {1, 2, 3, 5, 8, 16, 17, 64, 100, 257}) {
          for (const std::int32_t first : {0, 1, kMost - tokens}) {
            const auto y = run_f32(*backend, *weight, x.data() + first * kIn, tokens);
            EXPECT_TRUE(same_bits(y, std::span(expected).subspan(static_cast<std::size_t>(first * kOut), y.size())))
                << "encoding " << static_cast<int>(encoding) << " threads " << threads << " T " << tokens << " first "
                << first;
          }
        }
      }
    }
  }
}

TEST(CpuLinear, LevelsAgreeOnSubnormalsAndOverflow) {
  constexpr std::int64_t kOut = 48;
  constexpr std::int64_t kIn = 256;
  constexpr std::int32_t kTokens = 19;
  TestMatrix matrix;
  fill_matrix(matrix, WeightEncoding::kBf16, ActivationRounding::kNone, kOut, kIn, 31);
  std::mt19937 random(32);
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    const bf16 value = random_bf16(random, -127, i % 2 == 0 ? -30 : 10);  // -127: subnormal
    std::memcpy(matrix.weight.data() + i * 2, &value, 2);
    matrix.values[i] = to_float(value);
  }
  // Rows around the underflow threshold, and rows that overflow to infinity.
  auto x = random_inputs(kTokens * kIn, 33, -127, -60);
  const auto large = random_inputs(4 * kIn, 34, 90, 127);
  std::copy(large.begin(), large.end(), x.begin());
  std::vector<float> expected;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto row = widen(x.data() + t * kIn, kIn);
    for (std::int64_t n = 0; n < kOut; ++n) {
      const float sum = chain(matrix.values.data() + n * kIn, row.data(), kIn);
      expected.push_back(std::isnan(sum) ? std::bit_cast<float>(0x7fc00000U) : sum);
    }
  }
  for (const std::string& isa : isa_levels()) {
    const auto backend = make_backend(1, isa);
    EXPECT_TRUE(same_bits(run_f32(*backend, *pack(*backend, matrix.host), x.data(), kTokens), expected)) << isa;
  }
}

#if defined(__x86_64__)
__attribute__((target("avx512f,avx512bf16"))) void dot_instruction(const std::uint32_t* weight_pairs,
                                                                   const std::uint32_t* x_pairs, std::size_t pairs,
                                                                   float* sums) {
  __m512 sum = _mm512_setzero_ps();
  for (std::size_t i = 0; i < pairs; ++i) {
    const __m512i weight = _mm512_loadu_si512(weight_pairs + i * 16);
    sum = _mm512_dpbf16_ps(sum, (__m512bh)weight, (__m512bh)_mm512_set1_epi32(static_cast<int>(x_pairs[i])));
  }
  _mm512_storeu_ps(sums, sum);
}
#endif

// The chain is the arithmetic of vdpbf16ps, so that a kernel built on it could take over.
TEST(CpuLinear, ChainIsTheBf16DotProductInstruction) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx512bf16")) return;
  constexpr std::size_t kPairs = 64;
  std::mt19937 random(41);
  for (int round = 0; round < 200; ++round) {
    const int low = round % 2 == 0 ? -8 : -75;
    std::vector<float> weight(16 * kPairs * 2);
    std::vector<float> x(kPairs * 2);
    std::vector<std::uint32_t> weight_pairs(16 * kPairs);
    std::vector<std::uint32_t> x_pairs(kPairs);
    for (std::size_t k = 0; k < kPairs * 2; ++k) {
      const bf16 input = random_bf16(random, low, low + 12);
      x[k] = to_float(input);
      x_pairs[k / 2] |= std::uint32_t{input.bits} << (k % 2 * 16);
      for (std::size_t n = 0; n < 16; ++n) {
        const bf16 value = random_bf16(random, low, low + 12);
        weight[n * kPairs * 2 + k] = to_float(value);
        weight_pairs[k / 2 * 16 + n] |= std::uint32_t{value.bits} << (k % 2 * 16);
      }
    }
    float sums[16];
    dot_instruction(weight_pairs.data(), x_pairs.data(), kPairs, sums);
    for (std::size_t n = 0; n < 16; ++n) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(sums[n]),
                std::bit_cast<std::uint32_t>(chain(weight.data() + n * kPairs * 2, x.data(), kPairs * 2)));
    }
  }
#endif
}

TEST(CpuLinear, ActivationRoundingIsTheReference) {
  constexpr std::int64_t kIn = 400;  // the last block is short
  TestMatrix identity;
  fill_matrix(identity, WeightEncoding::kBf16, ActivationRounding::kFp8Block128, kIn, kIn, 1);
  for (std::int64_t i = 0; i < kIn * kIn; ++i) {
    const bf16 value = to_bf16(i / kIn == i % kIn ? 1.0F : 0.0F);
    std::memcpy(identity.weight.data() + i * 2, &value, 2);
  }
  constexpr std::int32_t kTokens = 70;
  auto x = random_inputs(kTokens * kIn, 51, -40, 12);
  // Every code and every midpoint between neighbours, at a scale of one.
  for (std::size_t code = 0; code < 0x7e; ++code) {
    const float low = kE4m3Values[code];
    x[code] = to_bf16(low);
    x[128 + code] = to_bf16((low + kE4m3Values[code + 1]) / 2);
    x[256 + code] = to_bf16(-(low + kE4m3Values[code + 1]) / 2);
  }
  for (const std::size_t block : {0U, 128U, 256U}) x[block + 127] = to_bf16(448.0F);
  for (std::size_t i = 0; i < kIn; ++i) x[kIn + i] = bf16{};  // a row of zeros
  for (const std::string& isa : isa_levels()) {
    const auto backend = make_backend(3, isa);
    const auto y = run_f32(*backend, *pack(*backend, identity.host), x.data(), kTokens);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      auto expected = widen(x.data() + t * kIn, kIn);
      round_activation_fp8(expected.data(), expected.size());
      for (std::int64_t i = 0; i < kIn; ++i) {
        ASSERT_EQ(y[static_cast<std::size_t>(t * kIn + i)], expected[static_cast<std::size_t>(i)]) << t << " " << i;
      }
    }
  }
}

TEST(CpuLinear, SlicesFindTheirBlockScales) {
  constexpr std::int64_t kRows = 416;
  constexpr std::int64_t kIn = 272;
  constexpr std::int32_t kTokens = 3;
  const auto backend = make_backend(2);
  const auto x = random_inputs(kTokens * kIn, 61);
  for (const WeightEncoding encoding : kEncodings) {
    TestMatrix matrix;
    fill_matrix(matrix, encoding, ActivationRounding::kNone, kRows, kIn, 62);
    const auto whole = run_f32(*backend, *pack(*backend, matrix.host), x.data(), kTokens);
    const std::pair<std::int64_t, std::int64_t> slices[] = {{0, 100}, {16, 128}, {112, 40}, {128, 288}, {400, 16}};
    for (const auto& [first, count] : slices) {
      // A slice of a slice too: wo_a's groups.
      const auto slice = pack(*backend, matrix.host.rows(first, kRows - first).rows(0, count));
      const auto y = run_f32(*backend, *slice, x.data(), kTokens);
      for (std::int64_t t = 0; t < kTokens; ++t) {
        for (std::int64_t n = 0; n < count; ++n) {
          ASSERT_EQ(y[static_cast<std::size_t>(t * count + n)], whole[static_cast<std::size_t>(t * kRows + first + n)]);
        }
      }
    }
  }
}

// Several calls of one operation, strided inputs and outputs, shared and distinct inputs.
TEST(CpuLinear, StridedCallsShareOneOperation) {
  constexpr std::int64_t kIn = 160;
  constexpr std::int64_t kStride = 200;
  constexpr std::int64_t kOuts[] = {24, 100, 64, 8};
  constexpr std::int64_t kYStride = 240;
  constexpr std::uint16_t kCanary = 0x7eef;
  for (const int threads : {1, 2, 3}) {
    const auto backend = make_backend(threads);
    for (const std::int32_t tokens : {1, 9, 40}) {
      const auto x = random_inputs(tokens * kStride, 71);
      const auto other = random_inputs(tokens * kIn, 72);
      std::vector<bf16> y(static_cast<std::size_t>(tokens * kYStride), bf16{kCanary});
      std::vector<float> y_f32(static_cast<std::size_t>(tokens * 8));
      TestMatrix matrices[4];
      std::unique_ptr<PackedLinear> weights[4];
      std::vector<LinearCall> calls;
      std::int64_t column = 10;
      for (std::size_t i = 0; i < 4; ++i) {
        const auto activation = i == 2 ? ActivationRounding::kNone : ActivationRounding::kFp8Block128;
        fill_matrix(matrices[i], kEncodings[i % 3], activation, kOuts[i], kIn, static_cast<std::uint32_t>(i));
        weights[i] = pack(*backend, matrices[i].host);
        LinearCall call{x.data() + 17, kStride, weights[i].get(), y.data() + column, kYStride, OutputType::kBf16};
        if (i == 3) call = {other.data(), kIn, weights[i].get(), y_f32.data(), 8, OutputType::kF32};
        calls.push_back(call);
        column += kOuts[i] + 5;
      }
      ASSERT_TRUE(backend->ops().linear(tokens, calls).ok());
      column = 10;
      std::vector<bool> written(y.size());
      for (std::size_t i = 0; i < 3; ++i) {
        std::vector<bf16> dense;
        for (std::int64_t t = 0; t < tokens; ++t) {
          dense.insert(dense.end(), x.begin() + t * kStride + 17, x.begin() + t * kStride + 17 + kIn);
        }
        const auto expected = run_f32(*backend, *weights[i], dense.data(), tokens);
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (std::int64_t n = 0; n < kOuts[i]; ++n) {
            const auto at = static_cast<std::size_t>(t * kYStride + column + n);
            ASSERT_EQ(y[at].bits, to_bf16(expected[static_cast<std::size_t>(t * kOuts[i] + n)]).bits);
            written[at] = true;
          }
        }
        column += kOuts[i] + 5;
      }
      for (std::size_t i = 0; i < y.size(); ++i) ASSERT_TRUE(written[i] || y[i].bits == kCanary) << i;
      EXPECT_TRUE(same_bits(y_f32, run_f32(*backend, *weights[3], other.data(), tokens)));
    }
  }
}

TEST(CpuLinear, NanAndInfinityStayInTheirRow) {
  constexpr std::int64_t kOut = 40;
  constexpr std::int64_t kIn = 256;
  constexpr std::int32_t kTokens = 12;
  for (const std::string& isa : isa_levels()) {
    const auto backend = make_backend(2, isa);
    for (const WeightEncoding encoding : kEncodings) {
      for (const auto activation : {ActivationRounding::kNone, ActivationRounding::kFp8Block128}) {
        TestMatrix matrix;
        fill_matrix(matrix, encoding, activation, kOut, kIn, 81);
        const auto weight = pack(*backend, matrix.host);
        auto x = random_inputs(kTokens * kIn, 82);
        const auto clean = run_f32(*backend, *weight, x.data(), kTokens);
        x[3 * kIn + 5] = {0xffc1};  // NaN with a payload
        x[7 * kIn + 200] = {0x7f80};
        const auto y = run_f32(*backend, *weight, x.data(), kTokens);
        for (std::int64_t t = 0; t < kTokens; ++t) {
          for (std::int64_t n = 0; n < kOut; ++n) {
            const auto at = static_cast<std::size_t>(t * kOut + n);
            if (t == 7 && activation == ActivationRounding::kNone) {  // infinite or NaN, as the signs of weights are
              ASSERT_FALSE(std::isfinite(y[at]));
              continue;
            }
            const float expected = t == 3 || t == 7 ? std::bit_cast<float>(0x7fc00000U) : clean[at];
            ASSERT_EQ(std::bit_cast<std::uint32_t>(y[at]), std::bit_cast<std::uint32_t>(expected)) << t << " " << n;
          }
        }
      }
    }
  }
}

TEST(CpuLinear, NanWeightCodesGiveNan) {
  TestMatrix matrix;
  fill_matrix(matrix, WeightEncoding::kFp8Block128, ActivationRounding::kNone, 32, 128, 91);
  matrix.weight[5 * 128 + 77] = std::byte{0xff};
  const auto x = random_inputs(128, 92);
  for (const std::string& isa : isa_levels()) {
    const auto backend = make_backend(1, isa);
    const auto y = run_f32(*backend, *pack(*backend, matrix.host), x.data(), 1);
    for (std::size_t n = 0; n < 32; ++n) EXPECT_EQ(std::isnan(y[n]), n == 5) << isa << " " << n;
  }
}

TEST(CpuLinear, PackRefusesWhatItCannotHold) {
  const auto backend = make_backend(1);
  const auto refused = [&](const HostLinear& host, StatusCode code, const std::string& part) {
    const auto packed = backend->pack_linear(host);
    ASSERT_FALSE(packed.ok());
    EXPECT_EQ(packed.status().code(), code);
    EXPECT_NE(packed.status().message().find("test.weight"), std::string::npos);
    EXPECT_NE(packed.status().message().find(part), std::string::npos) << packed.status().message();
  };
  TestMatrix fp8;
  fill_matrix(fp8, WeightEncoding::kFp8Block128, ActivationRounding::kNone, 256, 256, 1);
  refused(fp8.host.rows(8, 16), StatusCode::kUnsupported, "row 8");
  refused(fp8.host.rows(16, 256), StatusCode::kBadInput, "rows up to 272");
  refused(fp8.host.rows(0, 0), StatusCode::kBadInput, "shape [0, 256]");
  HostLinear host = fp8.host;
  host.scale = host.scale.first(3);
  refused(host, StatusCode::kBadInput, "3 bytes of scales");
  fp8.scale[3] = std::byte{192};
  refused(fp8.host, StatusCode::kUnsupported, "code 192 of block [1, 1]");
  TestMatrix nvfp4;
  fill_matrix(nvfp4, WeightEncoding::kNvfp4, ActivationRounding::kNone, 32, 64, 1);
  nvfp4.scale[5] = std::byte{0x7f};
  refused(nvfp4.host, StatusCode::kBadInput, "row 1, column 1 is NaN");
  host = nvfp4.host;
  host.in_features = 40;
  refused(host, StatusCode::kUnsupported, "40 inputs");
}

TEST(CpuLinear, MismatchedCallsAreProgrammingErrors) {
  const auto backend = make_backend(1);
  TestMatrix matrix;
  fill_matrix(matrix, WeightEncoding::kBf16, ActivationRounding::kNone, 16, 32, 1);
  const auto weight = pack(*backend, matrix.host);
  std::vector<bf16> x(32);
  std::vector<float> y(16);
  const LinearCall good{x.data(), 32, weight.get(), y.data(), 16, OutputType::kF32};
  const auto run = [&](const LinearCall& call) { return backend->ops().linear(1, std::span(&call, 1)); };
  EXPECT_TRUE(run(good).ok());
  EXPECT_TRUE(backend->ops().linear(0, std::span(&good, 1)).ok());
  LinearCall bad = good;
  bad.x_stride = 31;
  EXPECT_THROW(std::ignore = run(bad), CheckFailure);
  bad = good;
  bad.y_stride = 15;
  EXPECT_THROW(std::ignore = run(bad), CheckFailure);
  bad = good;
  bad.weight = nullptr;
  EXPECT_THROW(std::ignore = run(bad), CheckFailure);
}

}  // namespace
}  // namespace dsv4rt::test
