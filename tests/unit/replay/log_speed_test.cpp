// A log as long as Mooncake's whole conversation trace: 12,031 requests of 145 million tokens.
#include <chrono>
#include <fstream>
#include <iostream>

#include <gtest/gtest.h>

#include "replay/cache_study.h"
#include "support/expect_ok.h"
#include "support/generated_log.h"
#include "support/temp_directory.h"

namespace dsv4rt::replay {
namespace {

// Most memory this process ever had, in KiB.
std::int64_t peak_memory_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib;
  }
  return -1;
}

#ifdef NDEBUG
constexpr double kMostSeconds = 10;
#else
constexpr double kMostSeconds = 120;  // sanitizers and unoptimised code
#endif

TEST(LogSpeed, AWholeTraceIsStudiedInSecondsAndLittleMemory) {
  const dsv4rt::test::TempDirectory directory;
  const std::string path = (directory / "generated.jsonl").string();
  const auto totals = dsv4rt::test::write_generated_log(path, {.requests = 12'031, .input_scale = 0.838, .seed = 1});
  EXPECT_NEAR(static_cast<double>(totals.input_tokens), 145e6, 1e6);

  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kBelady}) {
    const auto begin = std::chrono::steady_clock::now();
    auto source = open_request_log(path, {});
    ASSERT_OK(source);
    const auto study = study_cache(
        **source,
        {.policy = policy, .capacities_tokens = {1'000'000, 4'000'000, 16'000'000, 64'000'000, kUnlimitedTokens}});
    ASSERT_OK(study);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_EQ(study->requests, 12'031);
    EXPECT_EQ(study->input_tokens, totals.input_tokens);
    EXPECT_EQ(study->output_tokens, totals.output_tokens);
    EXPECT_LT(seconds.count(), kMostSeconds);
    for (const CapacityResult& result : *study->capacities) {
      EXPECT_GE(result.hits.hit_tokens, result.lru.hit_tokens) << result.capacity_blocks;
    }
    // The generated log must exercise the cache: hits, and more of them in a larger one.
    EXPECT_GT(study->capacities->front().hits.hit_tokens, 0);
    EXPECT_GT(study->capacities->back().hits.hit_tokens, study->capacities->front().hits.hit_tokens);
    std::cout << (policy == EvictionPolicy::kLru ? "lru" : "belady") << ": " << seconds.count() << " s, "
              << totals.input_tokens << " tokens, peak " << peak_memory_kib() / 1024 << " MiB\n";
  }
  EXPECT_GT(peak_memory_kib(), 0);
  EXPECT_LT(peak_memory_kib(), std::int64_t{1} << 20);
}

}  // namespace
}  // namespace dsv4rt::replay
