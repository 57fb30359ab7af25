// Hits deep in long prompts, at random boundaries, equal a cold run byte for byte.
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"
#include "support/test_backend.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kUnit = 128;

struct LongCase {
  SyntheticModel model;
  std::int64_t tokens = 0;
  int hits = 0;
};

EngineOptions long_options(const LongCase& test, std::int32_t states) {
  EngineOptions options = test.model.options();
  options.backend = std::string(kTestBackend);
  options.limits = {.max_sequences = 2,
                    .max_context_tokens = test.tokens,
                    .max_step_tokens = 2048,
                    .pool_tokens = 0,
                    .boundary_states = states};
  options.prefix_cache.policy.interval_tokens = 1;
  options.draft_budget_tokens = 2;
  return options;
}

// Lengths of the warm sequences: just behind boundaries that occur once each, ascending.
std::vector<std::int64_t> random_lengths(const LongCase& test) {
  std::mt19937_64 random(static_cast<std::uint64_t>(test.tokens));
  std::set<std::int64_t> boundaries;
  const auto units = static_cast<std::uint64_t>(test.tokens / kUnit - 1);
  while (static_cast<int>(boundaries.size()) < std::min<int>(test.hits, static_cast<int>(units))) {
    boundaries.insert(kUnit * (1 + static_cast<std::int64_t>(random() % units)));
  }
  std::vector<std::int64_t> lengths;
  for (const std::int64_t boundary : boundaries) {
    lengths.push_back(boundary + 1 + static_cast<std::int64_t>(random() % 6));
  }
  return lengths;
}

void expect_long_hits(const LongCase& test) {
  const std::vector<std::int64_t> lengths = random_lengths(test);
  const auto states = static_cast<std::int32_t>(test.tokens / kUnit + 1);
  const auto cold_engine = make_engine(long_options(test, 0));
  const auto warm_engine = make_engine(long_options(test, states));
  const LayerRows rows = random_rows(8, static_cast<std::int64_t>(cold_engine->layers().size()), test.tokens,
                                     cold_engine->config().hidden_size);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(test.tokens));
  std::mt19937_64 random(3);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 1000);

  // Other chunks than those of the cold run, and no multiples of the unit.
  SequenceFeeder warm_feeder(*warm_engine);
  FedSequence writer = warm_feeder.create(rows, ids);
  warm_feeder.feed_to(writer, test.tokens, 1700);
  warm_feeder.release(writer);

  SequenceFeeder cold_feeder(*cold_engine);
  FedSequence cold = cold_feeder.create(rows);
  for (const std::int64_t length : lengths) {
    SCOPED_TRACE("length " + std::to_string(length));
    const std::int64_t boundary = (length - 1) / kUnit * kUnit;
    cold_feeder.feed_to(cold, boundary, 2048);
    cold_feeder.feed_to(cold, length);
    FedSequence warm = warm_feeder.create(rows, {ids.begin(), ids.begin() + length});
    ASSERT_EQ(warm.length, boundary);
    warm_feeder.feed_to(warm, length);
    ASSERT_FALSE(testing::Test::HasFatalFailure());
    const std::int64_t hidden = cold_engine->config().hidden_size;
    EXPECT_TRUE(warm.outputs == slice_rows(cold.outputs, boundary, length - boundary, hidden));
    EXPECT_EQ(warm_feeder.digests(warm), cold_feeder.digests(cold));
    warm_feeder.release(warm);
  }
  std::printf("[     INFO ] %zu hits up to %lld tokens\n", lengths.size(), static_cast<long long>(lengths.back()));
}

// All shapes of the tiny model, every boundary.
TEST(PrefixLongTest, TinyLayersToSixteenThousandTokens) {
  expect_long_hits({.model = {.config = "tiny", .first_layer = 0, .layer_count = 4}, .tokens = 16384, .hits = 127});
}

// One layer of each kind.
TEST(PrefixLongTest, OneLayerOfEachKindToSixtyFourThousandTokens) {
  expect_long_hits({.model = {.config = "tiny", .first_layer = 0, .layer_count = 3}, .tokens = 65536, .hits = 200});
}

}  // namespace
}  // namespace dsv4rt::test
