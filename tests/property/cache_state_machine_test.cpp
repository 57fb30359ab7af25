// KVCacheManager against a reference model: 1,000 seeds with 2,000 random operations each, small
// limits, every invariant and every row of every sequence checked after each operation. A failing
// seed is shrunk by RapidCheck to a short list of operations and printed.
#include <algorithm>
#include <cstdint>
#include <rapidcheck.h>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache_machine.h"
#include "random_scenario.h"

namespace dsv4rt::property {
namespace {

constexpr std::uint64_t kSeeds = 1000;
constexpr std::uint64_t kSeedsPerTest = 100;
constexpr std::size_t kOperationsPerSeed = 2000;

using Scenario = RandomScenario<CacheSetup>;

CacheSetup random_setup(rc::Random& random) {
  CacheSetup setup;
  setup.ratios = pick<std::vector<std::int32_t>>(random, {{4}, {128}, {0, 4}, {4, 128}, {0, 128, 4, 4}});
  setup.window = pick(random, {1, 3, 16, 128});
  setup.csa_rows_per_block = pick(random, {2, 4, 16, 64});
  setup.hca_rows_per_block = pick(random, {1, 2, 4});
  setup.draft_budget = pick(random, {0, 1, 3, 8});
  setup.max_sequences = pick(random, {1, 2, 3, 5, 6});
  setup.max_context = pick(random, {40, 257, 300, 520});
  setup.max_step_tokens = pick(random, {5, 40, 140});
  for (std::size_t layer = 0; layer < setup.ratios.size(); ++layer) {
    setup.spare_blocks.push_back(static_cast<std::int32_t>(random.next() % 5));
  }
  return setup;
}

// What this test program did so far, replays while shrinking excluded.
std::uint64_t operations_done = 0;
CacheEvents events;

// Empty when manager and model agree throughout.
std::string divergence(const Scenario& scenario) {
  std::size_t done = 0;
  try {
    CacheMachine machine(scenario.setup, events);
    for (; done < scenario.operations.size(); ++done) machine.apply(scenario.operations[done]);
  } catch (const std::exception& error) {
    return "operation " + std::to_string(done) + ": " + error.what();
  }
  operations_done += done;
  return {};
}

class CacheStateMachine : public testing::TestWithParam<std::uint64_t> {};

TEST_P(CacheStateMachine, AgreesWithTheReferenceModel) {
  const std::uint64_t before = operations_done;
  events = {};
  for (std::uint64_t seed = GetParam(); seed < GetParam() + kSeedsPerTest; ++seed) {
    const std::string failure =
        check_seed<CacheSetup>("cache state machine", seed, random_setup, kOperationsPerSeed, divergence);
    ASSERT_EQ(failure, "");
  }
  EXPECT_EQ(operations_done - before, kSeedsPerTest * kOperationsPerSeed);
  for (const auto& [name, count] : {std::pair{"block copies", events.block_copies},
                                    {"padded steps", events.padded_steps},
                                    {"rollbacks", events.rollbacks},
                                    {"refused rollbacks", events.refused_rollbacks},
                                    {"copies undone", events.undone_copies},
                                    {"copies kept by rollbacks", events.kept_copies},
                                    {"sequences emptied", events.emptied},
                                    {"reservations lost for want of blocks", events.broke_emptied},
                                    {"sequences restored", events.restored},
                                    {"blocks reported free", events.freed_blocks},
                                    {"creates short of blocks", events.short_creates},
                                    {"forks short of blocks", events.short_forks},
                                    {"truncates short of blocks", events.short_truncates},
                                    {"steps short of blocks", events.short_steps},
                                    {"steps within reservations", events.reserved_steps}}) {
    EXPECT_GE(count, kSeedsPerTest / 50) << name;
    RecordProperty(name, std::to_string(count));
  }
}

std::vector<std::uint64_t> first_seeds() {
  std::vector<std::uint64_t> seeds;
  for (std::uint64_t seed = 1; seed <= kSeeds; seed += kSeedsPerTest) seeds.push_back(seed);
  return seeds;
}

INSTANTIATE_TEST_SUITE_P(Seeds, CacheStateMachine, testing::ValuesIn(first_seeds()),
                         [](const auto& info) { return "From" + std::to_string(info.param); });

static_assert(kSeeds * kOperationsPerSeed >= 1'000'000 && kSeeds % kSeedsPerTest == 0);

}  // namespace
}  // namespace dsv4rt::property
