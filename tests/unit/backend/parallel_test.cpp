// The thread team: what its workers do and throw.
#include "backend/cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <stdexcept>
#include <vector>

#include <gtest/gtest.h>

#include "base/check.h"

namespace dsv4rt::cpu {
namespace {

// Items done are counted: who does not throw finishes its range.
class ParallelTest : public ::testing::TestWithParam<int> {
 protected:
  template <class Throw>
  Status run(std::int64_t items, std::int64_t first_bad, std::int64_t last_bad, const Throw& throw_it) {
    done_ = 0;
    return team_.parallel_for(items, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t item = begin; item < end; ++item) {
        if (item >= first_bad && item <= last_bad) throw_it();
        ++done_;
      }
    });
  }

  ThreadTeam team_{GetParam()};
  std::atomic<std::int64_t> done_ = 0;
};

TEST_P(ParallelTest, EveryItemIsDoneOnce) {
  for (const std::int64_t items : {0, 1, 2, 5, 1000}) {
    std::vector<int> times(static_cast<std::size_t>(items));
    const Status status = team_.parallel_for(items, [&](std::int64_t begin, std::int64_t end, int worker) {
      EXPECT_LT(worker, GetParam());
      for (std::int64_t item = begin; item < end; ++item) ++times[static_cast<std::size_t>(item)];
    });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(times, std::vector<int>(static_cast<std::size_t>(items), 1));
  }
}

TEST_P(ParallelTest, RangesAreNotShorterThanTheGrain) {
  for (const std::int64_t grain : {1, 3, 7, 100}) {
    std::atomic<std::int64_t> ranges = 0;
    std::atomic<std::int64_t> shortest = 1000;
    EXPECT_TRUE(team_
                    .parallel_for(
                        20,
                        [&](std::int64_t begin, std::int64_t end, int) {
                          ++ranges;
                          for (std::int64_t seen = shortest; end - begin < seen;) {
                            if (shortest.compare_exchange_weak(seen, end - begin)) break;
                          }
                        },
                        grain)
                    .ok());
    EXPECT_EQ(ranges, std::clamp<std::int64_t>(20 / grain, 1, team_.most_ranges()));
    EXPECT_GE(shortest, std::min<std::int64_t>(grain, 20));
  }
}

TEST_P(ParallelTest, AFailedCheckInAnyWorkerIsInternal) {
  constexpr std::int64_t kItems = 64;
  for (const std::int64_t bad : {0, 31, 63}) {
    const Status status = run(kItems, bad, bad, [] { DSV4RT_CHECK(1 + 1 == 3); });
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_NE(status.message().find("1 + 1 == 3"), std::string::npos) << status.message();
    // Only the rest of the range that threw is missing.
    EXPECT_GE(done_, kItems - (kItems + team_.most_ranges() - 1) / team_.most_ranges());
    EXPECT_LT(done_, kItems);
  }
}

TEST_P(ParallelTest, MemoryThatRunsOutInAWorkerIsResourceExhausted) {
  const Status status = run(64, 40, 40, [] { throw std::bad_alloc(); });
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
}

TEST_P(ParallelTest, OneOfSeveralFailuresIsTold) {
  const Status status = run(64, 0, 63, [] { throw std::runtime_error("everybody fails"); });
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "everybody fails");
}

TEST_P(ParallelTest, AThrownValueThatIsNoExceptionIsInternal) {
  EXPECT_EQ(run(64, 20, 20, [] { throw 7; }).code(), StatusCode::kInternal);
}

TEST_P(ParallelTest, TheTeamWorksOnAfterAFailure) {
  for (int round = 0; round < 10; ++round) {
    EXPECT_FALSE(run(64, 40, 50, [] { throw std::bad_alloc(); }).ok());
    EXPECT_TRUE(run(64, -1, -1, [] {}).ok());
    EXPECT_EQ(done_, 64);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelTest, ::testing::Values(1, 2, 3, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace dsv4rt::cpu
