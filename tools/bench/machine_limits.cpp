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

constexpr int kRepetitions = 3;
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

double flops_of(int threads, double (*chains)()) {
  std::vector<double> done(static_cast<std::size_t>(threads));
  const double seconds = best_seconds(threads, [&](int thread) { done[static_cast<std::size_t>(thread)] = chains(); });
  return done[0] * threads / seconds;
}

}  // namespace

double measure_read_bandwidth(int threads, std::size_t bytes) {
  const std::size_t part = bytes / static_cast<std::size_t>(threads) / 512 * 64;  // words of 8 bytes, in lines
  std::vector<std::unique_ptr<std::uint64_t[]>> parts(static_cast<std::size_t>(threads));
  for (auto& words : parts) {
    words = std::make_unique_for_overwrite<std::uint64_t[]>(part);
    std::fill_n(words.get(), part, std::uint64_t{1});
  }
  std::atomic<std::uint64_t> sink{0};
  const double seconds = best_seconds(threads, [&](int thread) {
    const std::uint64_t* words = parts[static_cast<std::size_t>(thread)].get();
    std::uint64_t sums[32] = {};
    for (std::size_t i = 0; i < part; i += 32) {
      for (std::size_t j = 0; j < 32; ++j) sums[j] ^= words[i + j];
    }
    for (const std::uint64_t sum : sums) sink += sum;
  });
  return static_cast<double>(part * 8) * threads / seconds;
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
