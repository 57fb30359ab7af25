#include "tools/dsv4rt/bench_shapes.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/expect_ok.h"

namespace dsv4rt::cli {
namespace {

using dsv4rt::test::fails_with;

TEST(BenchShapes, StepsAreSequencesTimesTokens) {
  const auto shapes = parse_step_shapes({"32x8192", "1x1"});
  ASSERT_OK(shapes);
  ASSERT_EQ(shapes->size(), 2U);
  EXPECT_EQ((*shapes)[0].batch, 32);
  EXPECT_EQ((*shapes)[0].context_tokens, 8192);
  EXPECT_EQ((*shapes)[1].batch, 1);
  EXPECT_EQ((*shapes)[1].context_tokens, 1);
}

TEST(BenchShapes, SequencesOfAStepHaveSeveralLengths) {
  const auto shapes = parse_step_shapes({"32x1024..8192", "1x7..7"});
  ASSERT_OK(shapes);
  ASSERT_EQ(shapes->size(), 2U);
  EXPECT_EQ((*shapes)[0].batch, 32);
  EXPECT_EQ((*shapes)[0].shortest_tokens, 1024);
  EXPECT_EQ((*shapes)[0].context_tokens, 8192);
  EXPECT_EQ((*shapes)[1].shortest_tokens, 7);
}

TEST(BenchShapes, OtherStepsAreRefusedByNameAndText) {
  for (const std::string text : {"4x..8",
                                 "4x8..",
                                 "4x8..7",
                                 "4x0..8",
                                 "4x-1..8",
                                 "4x1.8",
                                 "4x1...8",
                                 "4x1..8..9",
                                 "..4",
                                 "16777217x1",
                                 "1x2147483648",
                                 "2x1..9223372036854775807",
                                 "",
                                 "32",
                                 "32x",
                                 "x8192",
                                 "0x8192",
                                 "32x0",
                                 "-1x8192",
                                 "32x-1",
                                 "32x8192x",
                                 "32 x8192",
                                 "32X8192",
                                 "2147483648x1",
                                 "1x9223372036854775808"}) {
    EXPECT_TRUE(
        fails_with(parse_step_shapes({"1x1", text}), StatusCode::kInvalidArgument,
                   {"--whole-step: '" + text + "'", "accepted: SEQUENCESxTOKENS or SEQUENCESxSHORTEST..LONGEST"}));
  }
}

TEST(BenchShapes, PrefillsAreTokensAfterAContext) {
  const auto shapes = parse_prefill_shapes({"2048", "512@32768", "1@0"});
  ASSERT_OK(shapes);
  ASSERT_EQ(shapes->size(), 3U);
  EXPECT_EQ((*shapes)[0].tokens, 2048);
  EXPECT_EQ((*shapes)[0].context_tokens, 0);
  EXPECT_EQ((*shapes)[1].tokens, 512);
  EXPECT_EQ((*shapes)[1].context_tokens, 32768);
  EXPECT_EQ((*shapes)[2].context_tokens, 0);
}

TEST(BenchShapes, OtherPrefillsAreRefusedByNameAndText) {
  for (const std::string text : {"", "@", "2048@", "@32768", "0", "-1", "2048@-1", "2048@1@", "2048x1", "2048 ",
                                 "2147483648", "1@9223372036854775808"}) {
    EXPECT_TRUE(fails_with(parse_prefill_shapes({text}), StatusCode::kInvalidArgument,
                           {"--whole-prefill: '" + text + "'", "accepted: TOKENS or TOKENS@CONTEXT"}));
  }
}

TEST(BenchShapes, WhatATerminalWouldActOnIsEscaped) {
  EXPECT_TRUE(fails_with(parse_step_shapes({"1x1\x1b[31m"}), StatusCode::kInvalidArgument, {"'1x1\\x1b[31m'"}));
  EXPECT_TRUE(fails_with(parse_prefill_shapes({"\n1"}), StatusCode::kInvalidArgument, {"'\\x0a1'"}));
}

}  // namespace
}  // namespace dsv4rt::cli
