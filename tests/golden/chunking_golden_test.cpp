// Lesson 2: any chunking, thread count and batch gives the same bytes.
// However a sequence is cut into steps, whoever shares its batch and however many threads compute it:
// outputs and cache contents are the same bytes.
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "tools/lib/trace_run.h"

namespace dsv4rt::test {
namespace {

class ChunkingGolden : public testing::TestWithParam<const char*> {
 protected:
  ChunkingGolden() : golden_(GoldenCase::open(GetParam())) {
    const auto engine = make_engine(golden_.options());
    SequenceFeeder feeder(*engine);
    whole_ = feeder.create(golden_.inputs);
    feeder.feed_to(whole_, golden_.tokens());
    digests_ = feeder.digests(whole_);
  }

  void expect_same(SequenceFeeder& feeder, const FedSequence& sequence) const {
    ASSERT_EQ(sequence.length, golden_.tokens());
    const auto digests = feeder.digests(sequence);
    for (std::size_t layer = 0; layer < digests_.size(); ++layer) {
      EXPECT_TRUE(sequence.outputs[layer] == whole_.outputs[layer]) << "outputs differ in layer " << layer;
      EXPECT_EQ(digests[layer], digests_[layer]) << "cache contents differ in layer " << layer;
    }
  }

  GoldenCase golden_;
  FedSequence whole_;                 // the trace fed in one step
  std::vector<std::string> digests_;  // digests of its cache, one a layer
};

TEST_P(ChunkingGolden, EveryChunkSizeGivesTheSameBytes) {
  for (const std::int64_t chunk : {1, 3, 4, 5, 127, 128, 129, 256}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    const auto engine = make_engine(golden_.options());
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, golden_.tokens(), chunk);
    expect_same(feeder, sequence);
  }
}

// The command line's path: prefill in chunks, then token by token.
TEST_P(ChunkingGolden, TraceRunsGiveTheSameBytes) {
  for (const std::int64_t chunk : {0, 5, 127, 128, 129}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    const auto engine = make_engine(golden_.options());
    const auto run = run_trace(*engine, golden_.trace, {.chunk_tokens = chunk, .decode_from = -1}, {});
    ASSERT_OK(run);
    FedSequence sequence{.id = run->sequence, .inputs = {}, .outputs = {}, .length = golden_.tokens()};
    for (const LayerRun& layer : run->layers) {
      auto& rows = sequence.outputs.emplace_back(layer.output.size());
      std::memcpy(rows.data(), layer.output.data(), rows.size() * sizeof(Bf16Bits));
    }
    SequenceFeeder feeder(*engine);
    expect_same(feeder, sequence);
  }
}

TEST_P(ChunkingGolden, RandomChunksAndPaddingGiveTheSameBytes) {
  std::mt19937 random(20250101);
  EngineOptions options = golden_.options();
  options.limits.max_step_tokens += 8;
  for (int round = 0; round < 4; ++round) {
    const auto engine = make_engine(options);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    while (sequence.length < golden_.tokens()) {
      const std::int64_t largest = round % 2 == 0 ? 12 : 150;
      const auto wanted = static_cast<std::int64_t>(1 + random() % static_cast<unsigned>(largest));
      const FeedPart part{.sequence = &sequence, .tokens = std::min(wanted, golden_.tokens() - sequence.length)};
      feeder.step({&part, 1}, static_cast<std::int64_t>(random() % 4));
      ASSERT_FALSE(HasFatalFailure());
    }
    SCOPED_TRACE("round " + std::to_string(round));
    expect_same(feeder, sequence);
  }
}

TEST_P(ChunkingGolden, EveryThreadCountGivesTheSameBytes) {
  for (const std::int32_t threads : {1, 2, 3, 5}) {
    SCOPED_TRACE(std::to_string(threads) + " threads");
    EngineOptions options = golden_.options();
    options.threads = threads;
    const auto engine = make_engine(options);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(golden_.inputs);
    feeder.feed_to(sequence, golden_.tokens() - 20, 233);
    feeder.feed_to(sequence, golden_.tokens(), 1);
    expect_same(feeder, sequence);
  }
}

// Neighbours of other lengths before and after the golden sequence; they join and leave on the way.
TEST_P(ChunkingGolden, OtherSequencesInTheBatchChangeNothing) {
  EngineOptions options = golden_.options();
  options.limits.max_sequences = 4;
  options.limits.max_step_tokens = 1024;
  std::mt19937 random(77);
  const auto engine = make_engine(options);
  SequenceFeeder feeder(*engine);
  struct Neighbour {
    FedSequence sequence;
    bool before = false;
    std::int64_t lifetime = 0;
  };
  std::vector<Neighbour> neighbours;
  std::uint64_t seed = 1;
  const auto join = [&] {
    const std::int64_t lifetime = 1 + static_cast<std::int64_t>(random() % 200);
    neighbours.push_back({feeder.create(random_rows(++seed, golden_.layers(), lifetime, golden_.hidden())),
                          random() % 2 == 0, lifetime});
  };
  join();  // the golden sequence shall not own slot 0
  FedSequence golden = feeder.create(golden_.inputs);
  std::int64_t most_neighbours = 0;
  while (golden.length < golden_.tokens()) {
    while (neighbours.size() < 3 && random() % 3 != 0) join();
    const auto take = [&](std::int64_t left) {
      return std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(random() % (random() % 4 == 0 ? 60 : 3)));
    };
    std::vector<FeedPart> parts;
    for (const bool before : {true, false}) {
      for (Neighbour& n : neighbours) {
        if (n.before == before) parts.push_back({&n.sequence, take(n.lifetime - n.sequence.length)});
      }
      if (before) parts.push_back({&golden, take(golden_.tokens() - golden.length)});
    }
    most_neighbours = std::max(most_neighbours, static_cast<std::int64_t>(neighbours.size()));
    feeder.step(parts, static_cast<std::int64_t>(random() % 3));
    ASSERT_FALSE(HasFatalFailure());
    std::erase_if(neighbours, [&](const Neighbour& n) {
      const bool leaves = n.sequence.length == n.lifetime || random() % 50 == 0;
      if (leaves) feeder.release(n.sequence);
      return leaves;
    });
  }
  EXPECT_EQ(most_neighbours, 3);
  EXPECT_GT(seed, 6U) << "neighbours must come and go";
  expect_same(feeder, golden);
}

INSTANTIATE_TEST_SUITE_P(Checkpoints, ChunkingGolden, testing::Values("tiny-fp8", "tiny-bf16"), [](const auto& info) {
  return std::string(info.param) == "tiny-fp8" ? "TinyFp8" : "TinyBf16";
});

}  // namespace
}  // namespace dsv4rt::test
