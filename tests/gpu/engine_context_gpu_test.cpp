// Lesson 11: offsets beyond 2^31 bytes. Lesson 15: every accuracy test runs well past the window.
// Long contexts: the cache holds random rows that nobody computed, and the next tokens are decoded by both
// engines. Pools beyond 2^31 and 2^32 bytes: the sequence's blocks lie at their end.
#include <gtest/gtest.h>

#include "support/engine_pair.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

const SyntheticModel kSparse{.config = "deepseek-v4-flash", .first_layer = 2};
const SyntheticModel kHeavy{.config = "deepseek-v4-flash", .first_layer = 3};

EngineOptions context_options(const SyntheticModel& model, std::int64_t context, std::int32_t sequences = 1) {
  EngineOptions options = model.options();
  options.limits = {.max_sequences = sequences,
                    .max_context_tokens = context,
                    .max_step_tokens = 1024,
                    .pool_tokens = sequences * context};
  options.draft_budget_tokens = 7;
  return options;
}

// A verify step, a short chunk and decode steps at the end of the context.
void decode_and_compare(EnginePair& pair, PairedSequence& sequence) {
  const PairedPart verify{&sequence, 8, 6};
  pair.step({&verify, 1});
  pair.feed(sequence, 3);
  pair.feed(sequence, 1);
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  pair.expect_close_caches(sequence);
  pair.expect_close_outputs();
}

class EngineContextGpu : public testing::TestWithParam<std::int64_t> {};

TEST_P(EngineContextGpu, SparseLayer) {
  EnginePair pair(context_options(kSparse, GetParam()));
  PairedSequence sequence = pair.create();
  pair.append_synthetic(sequence, GetParam() - 14);
  decode_and_compare(pair, sequence);
}

TEST_P(EngineContextGpu, HeavilyCompressedLayer) {
  EnginePair pair(context_options(kHeavy, GetParam()));
  PairedSequence sequence = pair.create();
  pair.append_synthetic(sequence, GetParam() - 14);
  decode_and_compare(pair, sequence);
}

INSTANTIATE_TEST_SUITE_P(Tokens, EngineContextGpu, testing::Values(8192, 32768 + 5, 131072, 1048576),
                         testing::PrintToStringParamName());

// Sequences of a million tokens fill the pool before the one that is compared.
void compare_at_the_end_of_the_pool(const EngineOptions& cpu, const EngineOptions& gpu, std::int64_t pool_bytes) {
  EnginePair pair(cpu, gpu);
  const std::int64_t context = cpu.limits.max_context_tokens;
  ASSERT_GT(pair.gpu().memory().cache.total_bytes, pool_bytes);
  for (std::int32_t i = 0; i + 1 < gpu.limits.max_sequences; ++i) {
    const auto occupant = pair.gpu().create_sequence();
    ASSERT_OK(occupant);
    append_uncomputed(pair.gpu(), *occupant, context, gpu.limits.max_step_tokens);
    ASSERT_FALSE(testing::Test::HasFatalFailure());
  }
  PairedSequence sequence = pair.create();
  pair.append_synthetic(sequence, context - 14);
  decode_and_compare(pair, sequence);
}

TEST(EnginePoolGpu, RowsBeyondTwoGibibytes) {
  constexpr std::int64_t kContext = 1048576;  // 153 MB of rows a sequence
  const EngineOptions cpu = context_options(kSparse, kContext);
  EngineOptions gpu = context_options(kSparse, kContext, 17);
  gpu.limits.max_step_tokens = cpu.limits.max_step_tokens;
  compare_at_the_end_of_the_pool(cpu, gpu, std::int64_t{1} << 31);
}

// Unquantized rows and keys: the pool of rows passes 2^33 bytes and that of keys 2^31.
TEST(EnginePoolGpu, RowsAndKeysBeyondTwoGibibytes) {
  constexpr std::int64_t kContext = 1048576;
  EngineOptions cpu = context_options(kSparse, kContext);
  cpu.row_format = RowFormat::kBf16;
  cpu.index_format = IndexKeyFormat::kBf16;
  EngineOptions gpu = cpu;
  gpu.limits.max_sequences = 34;
  gpu.limits.pool_tokens = 34 * kContext;
  compare_at_the_end_of_the_pool(cpu, gpu, std::int64_t{1} << 33);
}

}  // namespace
}  // namespace dsv4rt::test
