// Context parallelism on the CPU: where a step is cut makes no difference. Prompts are divided so that every cut lies
// at every residue mod 128, and with it mod 4: at, before and after the ends of the blocks that compressors make rows
// of.
//
// A step of T rows that begins at position b has its cuts at b + 16 * floor(T * c / (16 * 2n)), c = 1 to 2n - 1. Its
// rows alone move a cut by multiples of 16, so b has to take every residue too.
//
//   EveryResidueOfEveryCut   b tokens, then 32n more, for b = 0 to 127: cut c lies at b + 16c, which takes every
//                            residue mod 128 as b does.
//   PromptsOfEveryLength     prompts of 1 to 2,048 tokens: some of them, or all with DSV4RT_CONTEXT_SWEEP=full. Each
//                            begins with b = 5 * length + length / 128 mod 128 tokens; the rest is one step. How often
//                            every cut met every residue is counted, and the full sweep fails where one was never met.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "attention/context_split.h"
#include "base/sha256.h"
#include "checkpoint/synthetic_checkpoint.h"
#include "mpi/mpi_ranks.h"
#include "support/golden_case.h"
#include "support/sequence_feeder.h"
#include "support/temp_directory.h"

namespace dsv4rt::test {
namespace {

constexpr std::int64_t kLongestPrompt = 2048;
constexpr std::int64_t kResidues = 128;  // the longest block of a compressor; 4 divides it
constexpr double kDeadlineSeconds = 300;

// A layer of each kind, window only, every 4 tokens with an indexer, every 128 tokens; narrow, since tokens are many.
const std::filesystem::path& checkpoint() {
  static const TempDirectory directory;
  static const std::filesystem::path path = [] {
    ModelConfig model = ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value();
    model.num_hidden_layers = 3;
    model.compress_ratios = {0, 4, 128};
    model.hidden_size = 64;
    model.q_lora_rank = 64;
    model.o_lora_rank = 16;
    model.index_topk = 4;
    model.sliding_window = 16;
    const LayerSchedule schedule = LayerSchedule::create(model).value();
    const std::filesystem::path made = directory / "narrow";
    EXPECT_OK(write_synthetic_checkpoint(made, model, schedule.layers(),
                                         {.encoding = WeightEncoding::kBf16, .seed = 7, .max_shard_bytes = 0}));
    return made;
  }();
  return path;
}

EngineOptions options() {
  EngineOptions options;
  options.checkpoint = checkpoint();
  options.backend = kTestBackend;
  options.threads = 1;
  options.limits = {
      .max_sequences = 1, .max_context_tokens = kLongestPrompt, .max_step_tokens = kLongestPrompt, .pool_tokens = 0};
  return options;
}

// What one rank has of a prompt, for every length of it: token after token, so that no step is cut.
class OneRank {
 public:
  static const OneRank& get() {
    static const OneRank made;
    return made;
  }
  [[nodiscard]] const LayerRows& inputs() const { return inputs_; }
  // Outputs and caches of a prompt's first `length` tokens.
  [[nodiscard]] const std::string& digest(std::int64_t length) const {
    return digests_[static_cast<std::size_t>(length - 1)];
  }

  static std::string digest_of(SequenceFeeder& feeder, const FedSequence& sequence) {
    Sha256 digest;
    for (const std::string& cache : feeder.digests(sequence)) digest.update(std::as_bytes(std::span(cache)));
    for (const auto& layer : sequence.outputs) digest.update(std::as_bytes(std::span(layer)));
    return digest.hex();
  }

 private:
  OneRank() {
    const auto engine = make_engine(options());
    inputs_ = random_rows(11, static_cast<std::int64_t>(engine->layers().size()), kLongestPrompt,
                          engine->config().hidden_size);
    SequenceFeeder feeder(*engine);
    FedSequence sequence = feeder.create(inputs_);
    for (std::int64_t length = 1; length <= kLongestPrompt; ++length) {
      feeder.feed(sequence, 1);
      digests_.push_back(digest_of(feeder, sequence));
    }
  }

  LayerRows inputs_;
  std::vector<std::string> digests_;
};

// How often cut c lay at a residue, with rows on both sides.
class MetResidues {
 public:
  explicit MetResidues(std::int32_t ranks) : met_(static_cast<std::size_t>(2 * ranks - 1)) {}

  void add(const ContextSplit& split, std::int64_t begin) {
    for (std::int32_t cut = 1; cut < split.pieces(); ++cut) {
      if (split.piece(cut - 1).count == 0 || split.piece(cut).count == 0) continue;
      const std::int64_t position = begin + split.piece(cut).first;
      ++met_[static_cast<std::size_t>(cut - 1)][static_cast<std::size_t>(position % kResidues)];
    }
  }
  // Of all cuts and residues the pair that was met least often.
  [[nodiscard]] std::int64_t least() const {
    std::int64_t least = met_.front().front();
    for (const auto& cut : met_) least = std::min(least, *std::min_element(cut.begin(), cut.end()));
    return least;
  }
  [[nodiscard]] std::size_t cuts() const { return met_.size(); }

 private:
  std::vector<std::array<std::int64_t, kResidues>> met_;
};

class ContextCuts : public testing::Test {
 protected:
  void SetUp() override {
    ranks_ = all_ranks(kDeadlineSeconds);
    EngineOptions divided = options();
    divided.parallel.context = ranks_;
    divided.parallel.context_min_tokens = 16;
    engine_ = make_engine(divided);
    met_.emplace(ranks_->size());
  }

  // A prompt in two steps, `begin` tokens and the rest; every rank has what one rank has after each.
  void feed(std::int64_t begin, std::int64_t length) {
    SequenceFeeder feeder(*engine_);
    FedSequence sequence = feeder.create(OneRank::get().inputs());
    for (const std::int64_t end : {begin, length}) {
      if (end == 0) continue;
      feeder.feed_to(sequence, end);
      const std::string digest = OneRank::digest_of(feeder, sequence);
      const std::vector<std::string> all = gather_texts(*ranks_, digest);
      for (std::size_t rank = 0; rank < all.size(); ++rank) {
        ASSERT_EQ(all[rank], OneRank::get().digest(end))
            << "rank " << rank << ": " << end << " tokens of a prompt of " << length << " after " << begin;
      }
    }
    feeder.release(sequence);
    met_->add(ContextSplit(static_cast<std::int32_t>(length - begin), ranks_->size()), begin);
  }

  // Every rank sees the same digests, and goes on or stops as the others do.
  [[nodiscard]] static bool failed() { return HasFatalFailure(); }

  std::shared_ptr<Communicator> ranks_;
  std::unique_ptr<Engine> engine_;
  std::optional<MetResidues> met_;
};

TEST_F(ContextCuts, EveryResidueOfEveryCut) {
  for (std::int64_t begin = 0; begin < kResidues && !failed(); ++begin) feed(begin, begin + 32 * ranks_->size());
  if (failed()) return;
  EXPECT_EQ(met_->least(), 1) << "a cut has missed a residue";
}

TEST_F(ContextCuts, PromptsOfEveryLength) {
  const char* const asked = std::getenv("DSV4RT_CONTEXT_SWEEP");
  const bool full = asked != nullptr && std::string_view(asked) == "full";
  // A prime: all residues mod 128 are among the lengths of the slice too.
  const std::int64_t stride = full ? 1 : 61;
  std::int64_t prompts = 0;
  for (std::int64_t length = 1; length <= kLongestPrompt && !failed(); length += stride) {
    const std::int64_t begin = (5 * length + length / kResidues) % kResidues;
    feed(begin < length ? begin : 0, length);
    ++prompts;
  }
  if (failed() || ranks_->rank() != 0) return;
  std::printf(
      "%lld prompts of 1 to %lld tokens over %d ranks: cache and outputs are one rank's; each of %zu cuts met "
      "every residue mod 128 at least %lld times\n",
      static_cast<long long>(prompts), static_cast<long long>(kLongestPrompt), ranks_->size(), met_->cuts(),
      static_cast<long long>(met_->least()));
  if (!full) return;
  EXPECT_GE(met_->least(), 1);
}

}  // namespace
}  // namespace dsv4rt::test
