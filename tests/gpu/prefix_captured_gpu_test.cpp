// A sequence that begins with a cached prefix, run by captured steps and by eager ones, is one that computed it.
#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gpu/support/gpu.h"
#include "gpu/support/step_recorder.h"
#include "support/sequence_feeder.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kUnit = 128;
constexpr std::int32_t kMaxTokens = 512;  // captured at most

class PrefixCapturedGpuTest : public GpuTest {
 protected:
  static EngineOptions options(std::int64_t context, std::int32_t states) {
    EngineOptions options = SyntheticModel{.config = "tiny", .first_layer = 0, .layer_count = 4}.options();
    options.backend = "cuda";
    options.limits = {.max_sequences = 4,
                      .max_context_tokens = context,
                      .max_step_tokens = kMaxTokens,
                      .pool_tokens = 0,
                      .boundary_states = states};
    options.prefix_cache.policy.interval_tokens = 1;
    options.draft_budget_tokens = 3;
    options.poison_freed_blocks = true;
    return options;
  }

  // Runs tokens [from, to) of the sequence, at most `chunk` at a time; outputs of every layer, step by step.
  static std::vector<std::vector<Bf16Bits>> run(StepRecorder& recorder, SequenceId id,
                                                const std::vector<Bf16Bits>& rows, const std::vector<std::int32_t>& ids,
                                                std::int64_t from, std::int64_t to, std::int64_t chunk) {
    const std::int64_t hidden = recorder.engine().config().hidden_size;
    std::vector<std::vector<Bf16Bits>> outputs;
    for (std::int64_t at = from; at < to; at += chunk) {
      const std::int64_t tokens = std::min(chunk, to - at);
      const StepEntry entry{.sequence = id, .tokens = static_cast<std::int32_t>(tokens), .token_ids = ids.data() + at};
      const std::vector<Bf16Bits> x(rows.begin() + at * hidden, rows.begin() + (at + tokens) * hidden);
      outputs.push_back(recorder.run({&entry, 1}, x, {}));
    }
    return outputs;
  }

  static void expect_hits(std::int64_t context, const std::vector<std::int64_t>& boundaries) {
    const auto states = static_cast<std::int32_t>(context / kUnit + 1);
    StepRecorder cold(options(context, 0), true, kMaxTokens);
    StepRecorder captured(options(context, states), true, kMaxTokens);
    StepRecorder eager(options(context, states), false, kMaxTokens);
    const std::vector<Bf16Bits> rows = random_rows(5, 1, context, cold.engine().config().hidden_size).front();
    std::vector<std::int32_t> ids(static_cast<std::size_t>(context));
    std::mt19937_64 random(6);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 1000);

    for (StepRecorder* recorder : {&captured, &eager}) {
      const auto writer = recorder->engine().create_sequence(ids, {});
      ASSERT_OK(writer);
      run(*recorder, writer->sequence, rows, ids, 0, context, recorder == &captured ? 300 : 512);
      ASSERT_OK(recorder->engine().release(writer->sequence));
    }
    const auto computed = cold.engine().create_sequence();
    ASSERT_OK(computed);
    std::int64_t length = 0;
    for (const std::int64_t boundary : boundaries) {
      SCOPED_TRACE("boundary " + std::to_string(boundary));
      run(cold, *computed, rows, ids, length, boundary, 512);
      length = std::min(boundary + 7, context);
      const auto expected = run(cold, *computed, rows, ids, boundary, length, 2);
      for (StepRecorder* recorder : {&captured, &eager}) {
        SCOPED_TRACE(recorder == &captured ? "captured" : "eager");
        const auto warm =
            recorder->engine().create_sequence(std::span(ids).first(static_cast<std::size_t>(length)), {});
        ASSERT_OK(warm);
        ASSERT_EQ(warm->hit_tokens, boundary);
        EXPECT_TRUE(run(*recorder, warm->sequence, rows, ids, boundary, length, 2) == expected);
        EXPECT_EQ(recorder->digest(warm->sequence), cold.digest(*computed));
        ASSERT_OK(recorder->engine().release(warm->sequence));
      }
    }
    EXPECT_GT(captured.engine().graph_stats().replays, 0);
    EXPECT_EQ(eager.engine().graph_stats().replays, 0);
  }
};

TEST_F(PrefixCapturedGpuTest, EveryBoundaryToOneThousandTokens) {
  expect_hits(1200, {128, 256, 384, 512, 640, 768, 896, 1024});
}

TEST_F(PrefixCapturedGpuTest, RandomBoundariesToSixtyFourThousandTokens) {
  std::mt19937_64 random(7);
  std::set<std::int64_t> boundaries;
  while (boundaries.size() < 20) boundaries.insert(kUnit * (1 + static_cast<std::int64_t>(random() % 511)));
  expect_hits(65536, {boundaries.begin(), boundaries.end()});
}

}  // namespace
}  // namespace dsv4rt::test
