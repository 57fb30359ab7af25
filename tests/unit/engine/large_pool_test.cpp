// Lesson 11: offsets beyond 2^31 bytes.
// Pools beyond 2^32 bytes: every block offset is computed in 64 bits.
#include <fstream>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"

namespace dsv4rt::test {
namespace {

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

// One block a sequence: 4096 BF16 rows are 4 MiB, of which a short sequence touches two pages. The last
// sequences' blocks lie beyond 2^31 and 2^32 bytes.
TEST(LargePool, BlocksBeyondFourGibibytesGiveTheSameBytes) {
  constexpr std::int32_t kSequences = 1030;
  constexpr std::int64_t kTokensEach = 9;
  const GoldenCase golden = GoldenCase::open("tiny-bf16", 1, 1);
  EngineOptions options = golden.options();
  options.row_format = RowFormat::kBf16;
  options.index_format = IndexKeyFormat::kBf16;
  options.csa_rows_per_block = 4096;
  options.limits = {.max_sequences = kSequences,
                    .max_context_tokens = kTokensEach,
                    .max_step_tokens = kTokensEach * 16,
                    .pool_tokens = 0};
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);  // huge pages would hide what is touched
  const std::int64_t resident_before = resident_bytes();
  const auto engine = make_engine(options);
  ASSERT_GT(engine->memory().cache.total_bytes, std::int64_t{1} << 32);
  SequenceFeeder feeder(*engine);
  std::vector<FedSequence> sequences;
  for (std::int32_t i = 0; i < kSequences; ++i) {
    sequences.push_back(feeder.create(random_rows(static_cast<std::uint64_t>(i), 1, kTokensEach, golden.hidden())));
  }
  // Every sequence owns a block after its fourth token; only a few go on.
  const std::size_t watched[] = {0, 510, 511, 512, 513, 1022, 1023, 1024, kSequences - 1};
  for (std::size_t first = 0; first < kSequences; first += 16) {
    std::vector<FeedPart> parts;
    for (std::size_t i = first; i < std::min<std::size_t>(first + 16, kSequences); ++i) {
      parts.push_back({.sequence = &sequences[i], .tokens = 4});
    }
    feeder.step(parts);
    ASSERT_FALSE(HasFatalFailure());
  }
  for (const std::size_t i : watched) feeder.feed_to(sequences[i], kTokensEach, 1);

  EngineOptions small = options;
  small.limits.max_sequences = 1;
  for (const std::size_t i : watched) {
    SCOPED_TRACE("sequence " + std::to_string(i));
    const auto alone = make_engine(small);
    SequenceFeeder reference(*alone);
    FedSequence expected = reference.create(sequences[i].inputs);
    reference.feed_to(expected, kTokensEach);
    EXPECT_TRUE(sequences[i].outputs == expected.outputs);
    EXPECT_EQ(feeder.digests(sequences[i]), reference.digests(expected));
  }
  // Memory is taken when it is touched, so that a generous pool costs what it holds.
  EXPECT_LT(resident_bytes() - resident_before, std::int64_t{1} << 30);
}

}  // namespace
}  // namespace dsv4rt::test
