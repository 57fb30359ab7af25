// The CUDA engine against the CPU engine over the life of sequences, with every kind of layer, weight
// encoding and cache format.
#include <gtest/gtest.h>

#include "support/engine_pair.h"
#include "support/synthetic_model.h"

namespace dsv4rt::test {
namespace {

constexpr std::int32_t kDraftBudgetTokens = 7;

EngineOptions tiny_options(std::int32_t sequences, WeightEncoding encoding = WeightEncoding::kFp8Block128) {
  EngineOptions options =
      SyntheticModel{.config = "tiny", .first_layer = 0, .layer_count = 4, .encoding = encoding}.options();
  options.limits = {.max_sequences = sequences, .max_context_tokens = 1100, .max_step_tokens = 320, .pool_tokens = 0};
  options.draft_budget_tokens = kDraftBudgetTokens;
  options.csa_rows_per_block = 32;
  options.hca_rows_per_block = 2;
  return options;
}

// One sequence: a prompt in chunks, then single tokens; caches and outputs as on the CPU.
void compare_one_sequence(const EngineOptions& options, std::int64_t prompt, std::int64_t chunk, std::int64_t length) {
  EnginePair pair(options);
  PairedSequence sequence = pair.create();
  pair.feed_to(sequence, prompt, chunk);
  pair.feed_to(sequence, length, 1);
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  pair.expect_close_caches(sequence);
  pair.expect_close_outputs();
}

class EngineGpuEncodings : public testing::TestWithParam<WeightEncoding> {};

TEST_P(EngineGpuEncodings, PrefillAndDecode) {
  EnginePair pair(tiny_options(1, GetParam()));
  for (const std::int64_t prompt : {1, 3, 129, 300, 701}) {
    SCOPED_TRACE("prompt of " + std::to_string(prompt));
    PairedSequence sequence = pair.create();
    pair.feed_to(sequence, prompt, 257);
    pair.feed_to(sequence, prompt + 20, 1);
    ASSERT_FALSE(HasFatalFailure());
    pair.expect_close_caches(sequence);
    pair.release(sequence);
  }
  pair.expect_close_outputs();
}

INSTANTIATE_TEST_SUITE_P(Encodings, EngineGpuEncodings,
                         testing::Values(WeightEncoding::kBf16, WeightEncoding::kFp8Block128, WeightEncoding::kNvfp4),
                         [](const auto& info) {
                           return info.param == WeightEncoding::kBf16          ? "Bf16"
                                  : info.param == WeightEncoding::kFp8Block128 ? "Fp8"
                                                                               : "Nvfp4";
                         });

struct Formats {
  RowFormat rows;
  IndexKeyFormat keys;
};
class EngineGpuFormats : public testing::TestWithParam<Formats> {};

TEST_P(EngineGpuFormats, EveryCacheFormat) {
  EngineOptions options = tiny_options(1, WeightEncoding::kBf16);
  options.row_format = GetParam().rows;
  options.index_format = GetParam().keys;
  compare_one_sequence(options, 521, 130, 530);
}

INSTANTIATE_TEST_SUITE_P(Formats, EngineGpuFormats,
                         testing::Values(Formats{RowFormat::kFp8DsMla, IndexKeyFormat::kMxfp4},
                                         Formats{RowFormat::kFp8Row, IndexKeyFormat::kNvfp4},
                                         Formats{RowFormat::kNvfp4, IndexKeyFormat::kFp8},
                                         Formats{RowFormat::kBf16, IndexKeyFormat::kBf16}),
                         [](const auto& info) {
                           return std::string(row_format_name(info.param.rows)) + "_" +
                                  std::string(index_key_format_name(info.param.keys));
                         });

TEST(EngineGpu, SeedProfile) {
  EngineOptions options = tiny_options(1, WeightEncoding::kBf16);
  options.profile = "seed";
  compare_one_sequence(options, 390, 127, 400);
}

// Little work that passes through every kernel, for tools that slow a program down a hundred times: a verify
// step that completes blocks of both ratios, and a decode step.
TEST(EngineGpu, FewTokens) {
  EnginePair pair(tiny_options(1));
  PairedSequence sequence = pair.create();
  pair.append_synthetic(sequence, 125);
  const PairedPart verify{&sequence, 4, 1};
  pair.step({&verify, 1}, 1);
  pair.feed(sequence, 1);
  ASSERT_FALSE(HasFatalFailure());
  pair.expect_close_caches(sequence);
  pair.expect_close_outputs();
}

// Head counts that fill no tile of a kernel.
TEST(EngineGpu, OddHeadCounts) {
  for (const auto& [heads, index_heads] : {std::pair{24, 40}, std::pair{40, 24}, std::pair{120, 8}}) {
    SCOPED_TRACE(std::to_string(heads) + " heads");
    EngineOptions options = SyntheticModel{.config = "tiny",
                                           .first_layer = 0,
                                           .layer_count = 3,
                                           .encoding = WeightEncoding::kBf16,
                                           .heads = heads,
                                           .index_heads = index_heads}
                                .options();
    options.limits = tiny_options(1).limits;
    compare_one_sequence(options, 300, 140, 305);
  }
}

// Lesson 1: boundaries x {verify, rollback}.
TEST(EngineGpu, VerifyAndRollBackOneToSeven) {
  EnginePair pair(tiny_options(1));
  for (const std::int64_t start : {1, 3, 4, 5, 7, 8, 126, 127, 128, 129, 254, 255, 256, 257, 511, 512, 513}) {
    SCOPED_TRACE("from " + std::to_string(start));
    PairedSequence sequence = pair.create();
    pair.feed_to(sequence, start, 256);
    for (std::int64_t rejected = 1; rejected <= kDraftBudgetTokens; ++rejected) {
      const PairedPart part{&sequence, 8, rejected};
      pair.step({&part, 1});
    }
    pair.feed(sequence, 1);
    ASSERT_FALSE(HasFatalFailure());
    pair.expect_close_caches(sequence);
    pair.release(sequence);
  }
  pair.expect_close_outputs();
}

TEST(EngineGpu, ForksTruncationAndReusedSlots) {
  EnginePair pair(tiny_options(4));
  for (const std::int64_t position : {3, 4, 6, 127, 130, 255, 260}) {
    SCOPED_TRACE("fork at " + std::to_string(position));
    PairedSequence parent = pair.create();
    pair.feed(parent, position);
    PairedSequence child = pair.fork(parent);
    PairedSequence grandchild = pair.fork(child);
    const PairedPart parts[] = {{&child, 5}, {&grandchild, 6}, {&parent, 37}};
    pair.step(parts, 3);
    if (position > 4) pair.truncate(grandchild, position + 6 - kDraftBudgetTokens);
    for (PairedSequence* sequence : {&grandchild, &parent, &child}) pair.feed_to(*sequence, position + 60, 21);
    ASSERT_FALSE(HasFatalFailure());
    for (const PairedSequence* sequence : {&parent, &child, &grandchild}) pair.expect_close_caches(*sequence);
    pair.release(parent);
    // Somebody else takes the parent's slot and blocks; a short sequence must see nothing of it.
    PairedSequence next = pair.create();
    pair.feed_to(next, 5, 2);
    pair.truncate(child, 0);
    pair.feed(child, 9);
    ASSERT_FALSE(HasFatalFailure());
    for (const PairedSequence* sequence : {&next, &child, &grandchild}) {
      pair.expect_close_caches(*sequence);
      pair.release(*sequence);
    }
  }
  pair.expect_close_outputs();
}

// A sequence that was saved by one backend continues on the other.
TEST(EngineGpu, SnapshotsMoveBetweenBackends) {
  EnginePair pair(tiny_options(2));
  for (const std::int64_t length : {3, 131, 390}) {
    SCOPED_TRACE("saved at " + std::to_string(length));
    PairedSequence sequence = pair.create();
    pair.feed_to(sequence, length, 150);
    const auto from_cpu = pair.cpu().save_sequence(sequence.cpu);
    const auto from_gpu = pair.gpu().save_sequence(sequence.gpu);
    ASSERT_OK(from_cpu);
    ASSERT_OK(from_gpu);
    pair.release(sequence);
    const auto on_cpu = pair.cpu().restore_sequence(*from_gpu);
    const auto on_gpu = pair.gpu().restore_sequence(*from_cpu);
    ASSERT_OK(on_cpu);
    ASSERT_OK(on_gpu);
    PairedSequence moved{*on_cpu, *on_gpu, length};
    pair.expect_close_caches(moved);
    pair.feed_to(moved, length + 150, 31);
    ASSERT_FALSE(HasFatalFailure());
    pair.expect_close_caches(moved);
    pair.release(moved);
  }
  pair.expect_close_outputs();
}

// Prefill chunks, decodes and verify steps of many sequences side by side, padded.
TEST(EngineGpu, MixedBatchesWithPadding) {
  constexpr int kSequences = 24;
  EnginePair pair(tiny_options(kSequences));
  std::vector<PairedSequence> sequences;
  for (int i = 0; i < kSequences; ++i) sequences.push_back(pair.create());
  std::uint32_t random = 12345;
  const auto next = [&](std::uint32_t bound) {
    random = random * 1664525U + 1013904223U;
    return static_cast<std::int64_t>((random >> 8) % bound);
  };
  for (int round = 0; round < 40; ++round) {
    std::vector<PairedPart> parts;
    std::int64_t tokens = 0;
    for (PairedSequence& sequence : sequences) {
      if (next(4) == 0) continue;
      PairedPart part{&sequence, 1};
      if (next(10) == 0) part.tokens = 1 + next(60);
      if (next(5) == 0) {
        part.tokens = 8;
        part.rejected = next(8);
      }
      if (tokens + part.tokens > 300) break;
      tokens += part.tokens;
      parts.push_back(part);
    }
    pair.step(parts, next(20));
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
  for (const PairedSequence& sequence : sequences) pair.expect_close_caches(sequence);
  pair.expect_close_outputs();
}

}  // namespace
}  // namespace dsv4rt::test
