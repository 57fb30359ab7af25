// The prefix cache against a ground truth of contents: random operations on small caches, everything read back after
// each one. DSV4RT_PREFIX_OPERATIONS says how many (1,000,000 if unset). A failing seed is shrunk by RapidCheck to a
// short list of operations and printed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <rapidcheck.h>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "prefix_machine.h"
#include "random_scenario.h"

namespace dsv4rt::property {
namespace {

constexpr std::uint64_t kOperationsPerSeed = 1000;

PrefixSetup random_setup(rc::Random& random) {
  PrefixSetup setup;
  setup.ratios = pick<std::vector<std::int32_t>>(random, {{4}, {128}, {0, 4}, {4, 128}, {4, 128}, {0, 128, 4, 4}});
  setup.window = pick(random, {1, 3, 16, 128});
  setup.csa_rows_per_block = pick(random, {8, 16, 32, 64, 128});
  setup.hca_rows_per_block = pick(random, {1, 2, 4});
  setup.draft_budget = pick(random, {0, 1, 3, 8});
  setup.max_sequences = pick(random, {1, 2, 3, 5, 6});
  setup.max_context = pick(random, {300, 520, 700});
  setup.max_step_tokens = pick(random, {140, 300, 700});
  setup.boundary_states = pick(random, {1, 2, 12, 40, 40});
  setup.quota_units = pick(random, {0, 0, 0, 2, 5});
  setup.contexts = pick(random, {1, 2, 4, 8});
  setup.spare_blocks = pick(random, {0, 1, 3});
  return setup;
}

PrefixCounts counts;

// Empty when nothing differs throughout.
std::string divergence(const RandomScenario<PrefixSetup>& scenario) {
  std::size_t done = 0;
  try {
    PrefixMachine machine(scenario.setup, counts);
    for (; done < scenario.operations.size(); ++done) machine.apply(scenario.operations[done]);
    machine.finish();
  } catch (const std::exception& error) {
    return "operation " + std::to_string(done) + ": " + error.what();
  }
  return {};
}

TEST(PrefixStateMachine, AHitIsWhatAColdRunLeaves) {
  const char* wanted = std::getenv("DSV4RT_PREFIX_OPERATIONS");
  const std::uint64_t operations = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 1'000'000;
  ASSERT_GE(operations, kOperationsPerSeed) << "DSV4RT_PREFIX_OPERATIONS";
  const std::uint64_t seeds = operations / kOperationsPerSeed;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::string failure =
        check_seed<PrefixSetup>("prefix state machine", seed, random_setup, kOperationsPerSeed, divergence);
    ASSERT_EQ(failure, "");
  }
  EXPECT_EQ(counts.operations, seeds * kOperationsPerSeed);
  for (const auto& [name, count] : {std::pair{"sequences created with ids", counts.creates},
                                    {"hits", counts.hits},
                                    {"hit tokens", counts.hit_tokens},
                                    {"hits shortened for reservations", counts.shorter_hits},
                                    {"branches", counts.branches},
                                    {"branches without a state", counts.branches_without_state},
                                    {"cuts to boundaries", counts.cuts_to_boundaries},
                                    {"forks", counts.forks},
                                    {"pins", counts.pins},
                                    {"refused pins", counts.refused_pins},
                                    {"unpins", counts.unpins},
                                    {"units evicted on request", counts.evicted_on_request},
                                    {"units evicted for space", counts.evicted_for_space},
                                    {"units evicted by quota", counts.evicted_by_quota},
                                    {"states taken", counts.states_taken},
                                    {"states removed", counts.states_removed},
                                    {"states refused", counts.states_refused},
                                    {"sequences detached", counts.detached},
                                    {"states captured inside steps", counts.captures},
                                    {"states copied out of rings", counts.boundary_copies},
                                    {"states whose copy failed", counts.dropped_copies},
                                    {"copies on write", counts.block_copies},
                                    {"copies undone", counts.undone_copies},
                                    {"tokens rejected", counts.rejected},
                                    {"sequences emptied", counts.emptied},
                                    {"sequences ended", counts.sequences_ended},
                                    {"steps short of blocks", counts.short_steps},
                                    {"steps within reservations", counts.reserved_steps},
                                    {"steps that evicted", counts.evicting_steps},
                                    {"blocks poisoned", counts.poisoned_blocks}}) {
    EXPECT_GE(count, std::max<std::uint64_t>(1, operations / 100'000)) << name;
    RecordProperty(name, std::to_string(count));
    std::printf("%12llu %s\n", static_cast<unsigned long long>(count), name);
  }
}

}  // namespace
}  // namespace dsv4rt::property
