#include "machine_limits.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dsv4rt::bench {
namespace {

constexpr int kRepetitions = 5;
constexpr std::int64_t kPeakIterations = 4'000'000;
constexpr int kChains = 20;

// Seconds of processor time for one thread, so that other programs on the machine count less; of wall
// time for several, because the slowest of them decides.
double clock_seconds(int threads) {
  timespec now{};
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Best time of `work(thread)` on all threads at once.
template <class Work>
double best_seconds(int threads, const Work& work) {
  double best = 1e30;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const double start = clock_seconds(threads);
    std::vector<std::thread> team;
    for (int thread = 1; thread < threads; ++thread) team.emplace_back(work, thread);
    work(0);
    for (std::thread& member : team) member.join();
    best = std::min(best, clock_seconds(threads) - start);
  }
  return best;
}

// Each returns the floating-point operations done. The empty assembler statements hide values from the
// compiler, which would otherwise see that all chains are alike.
double portable_chains() {
  float sums[64] = {};
  for (std::int64_t i = 0; i < kPeakIterations; ++i) {
    for (float& sum : sums) sum += sum * 0.5F;
    asm volatile("" : : "r"(sums) : "memory");
  }
  return 128.0 * static_cast<double>(kPeakIterations);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) double avx2_chains() {
  __m256 sums[12] = {};
  __m256 factor = _mm256_set1_ps(1.0F);
  for (__m256& sum : sums) asm volatile("" : "+x"(sum));
  for (std::int64_t i = 0; i < kPeakIterations; ++i) {
    asm volatile("" : "+x"(factor));
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(factor, factor, sum);
  }
  for (__m256& sum : sums) asm volatile("" : : "x"(sum));
  return 12.0 * 16.0 * static_cast<double>(kPeakIterations);
}

__attribute__((target("avx512f"))) double avx512_chains() {
  __m512 sums[kChains] = {};
  __m512 factor = _mm512_set1_ps(1.0F);
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  for (std::int64_t i = 0; i < kPeakIterations; ++i) {
    asm volatile("" : "+v"(factor));
#pragma GCC unroll 20
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(factor, factor, sum);
  }
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
  return kChains * 32.0 * static_cast<double>(kPeakIterations);
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_chains() {
  __m512 sums[kChains] = {};
  __m512i factor = _mm512_set1_epi16(0x3f80);
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  for (std::int64_t i = 0; i < kPeakIterations; ++i) {
    asm volatile("" : "+v"(factor));
#pragma GCC unroll 20
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, (__m512bh)factor, (__m512bh)factor);
  }
  for (__m512& sum : sums) asm volatile("" : : "v"(sum));
  return kChains * 64.0 * static_cast<double>(kPeakIterations);
}
#endif

// Reads `lines` lines of 64 bytes, a multiple of kReadLines, and returns something that depends on them.
using ReadFunction = std::uint64_t (*)(const std::uint64_t* words, std::size_t lines);
constexpr std::size_t kReadLines = 8;
constexpr std::size_t kReadAheadWords = 256;

std::uint64_t read_portable(const std::uint64_t* words, std::size_t lines) {
  std::uint64_t sums[8] = {};
  for (std::size_t line = 0; line < lines; ++line, words += 8) {
    __builtin_prefetch(words + kReadAheadWords);
    for (std::size_t i = 0; i < 8; ++i) sums[i] ^= words[i];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total ^= sum;
  return total;
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) std::uint64_t read_avx512(const std::uint64_t* words, std::size_t lines) {
  __m512i sums[kReadLines] = {};
  for (std::size_t line = 0; line < lines; line += kReadLines, words += kReadLines * 8) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kReadLines; ++i) {
      __builtin_prefetch(words + i * 8 + kReadAheadWords);
      sums[i] = _mm512_xor_si512(sums[i], _mm512_loadu_si512(words + i * 8));
    }
  }
  for (std::size_t i = 1; i < kReadLines; ++i) sums[0] = _mm512_xor_si512(sums[0], sums[i]);
  std::uint64_t result[8];
  _mm512_storeu_si512(result, sums[0]);
  return result[0] ^ result[5];
}
#endif

double flops_of(int threads, double (*chains)()) {
  std::vector<double> done(static_cast<std::size_t>(threads));
  const double seconds = best_seconds(threads, [&](int thread) { done[static_cast<std::size_t>(thread)] = chains(); });
  return done[0] * threads / seconds;
}

}  // namespace

double measure_read_bandwidth(int threads, std::size_t bytes) {
  const std::size_t lines = bytes / static_cast<std::size_t>(threads) / (kReadLines * 64) * kReadLines;
  ReadFunction read = read_portable;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) read = read_avx512;
#endif
  std::vector<std::unique_ptr<std::uint64_t[]>> parts(static_cast<std::size_t>(threads));
  for (auto& words : parts) {
    words = std::make_unique_for_overwrite<std::uint64_t[]>(lines * 8);
    std::fill_n(words.get(), lines * 8, std::uint64_t{1});
  }
  std::atomic<std::uint64_t> sink{0};
  const double seconds =
      best_seconds(threads, [&](int thread) { sink += read(parts[static_cast<std::size_t>(thread)].get(), lines); });
  return static_cast<double>(lines * 64) * threads / seconds;
}

double measure_peak_flops(int threads) {
  double best = 0;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = flops_of(threads, avx2_chains);
  if (__builtin_cpu_supports("avx512f")) best = std::max(best, flops_of(threads, avx512_chains));
  if (__builtin_cpu_supports("avx512bf16")) best = std::max(best, flops_of(threads, bf16_chains));
#endif
  return best > 0 ? best : flops_of(threads, portable_chains);
}

}  // namespace dsv4rt::bench
