#include "tools/dsv4rt/byte_size.h"

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/expect_ok.h"

namespace dsv4rt::cli {
namespace {

using dsv4rt::test::fails_with;

TEST(ByteSize, EveryUnitIsKnown) {
  const std::vector<std::pair<std::string, std::int64_t>> sizes{
      {"1", 1},
      {"4096", 4096},
      {"4096B", 4096},
      {"3KB", 3000},
      {"2MB", 2'000'000},
      {"1.5GB", 1'500'000'000},
      {"1TB", 1'000'000'000'000},
      {"0.5KiB", 512},
      {"512 MiB", std::int64_t{512} << 20},
      {"80GiB", std::int64_t{80} << 30},
      {"7TiB", std::int64_t{7} << 40},
      {"8999999TB", 8'999'999'000'000'000'000},
  };
  for (const auto& [text, bytes] : sizes) {
    const auto parsed = parse_byte_size("--memory", text);
    ASSERT_OK(parsed);
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ByteSize, AnythingElseIsRefusedByNameAndText) {
  for (const std::string text : {"", "GiB", "0", "-1", "+1", " 1", "0.4", "0.0001KB", "1kb", "1G", "1Bs", "1e3", "0x10",
                                 "1,5GB", "inf", "nan", "9000000TB", "9223372036854775808", "1GiB "}) {
    EXPECT_TRUE(fails_with(parse_byte_size("--memory", text), StatusCode::kInvalidArgument,
                           {"--memory: '" + text + "'", "accepted: a positive number"}));
  }
  EXPECT_TRUE(fails_with(parse_byte_size("--memory", "1\x1b[2J"), StatusCode::kInvalidArgument, {"'1\\x1b[2J'"}));
}

TEST(TokenCount, EveryUnitIsKnown) {
  const std::vector<std::pair<std::string, std::int64_t>> counts{
      {"1", 1},
      {"4096", 4096},
      {"3K", 3000},
      {"1.5M", 1'500'000},
      {"2G", 2'000'000'000},
      {"1Ki", 1024},
      {"1.5Mi", 1'572'864},
      {"1Gi", 1'073'741'824},
      {"inf", std::numeric_limits<std::int64_t>::max()},
  };
  for (const auto& [text, tokens] : counts) {
    const auto parsed = parse_token_count("--pool-tokens", text);
    ASSERT_OK(parsed);
    EXPECT_EQ(*parsed, tokens) << text;
  }
}

TEST(TokenCount, AnythingElseIsRefusedByNameAndText) {
  for (const std::string text : {"", "M", "0", "-1", "0.4", "1KB", "1k", "1 K", "1e3", "nan", "infinity", "-inf",
                                 "9000000T", "9223372036854775808"}) {
    EXPECT_TRUE(fails_with(parse_token_count("--pool-tokens", text), StatusCode::kInvalidArgument,
                           {"--pool-tokens: '" + text + "'", "accepted: inf, or a positive number"}));
  }
}

TEST(LayerRange, IsOneLayerOrAnInclusiveRange) {
  for (const auto& [text, first, last] :
       {std::tuple("2", 2, 2), std::tuple("0-3", 0, 3), std::tuple("7-7", 7, 7), std::tuple("0", 0, 0)}) {
    const auto range = parse_layer_range("--layers", text);
    ASSERT_OK(range);
    EXPECT_EQ(range->first, first) << text;
    EXPECT_EQ(range->last, last) << text;
  }
}

TEST(LayerRange, AnythingElseIsRefusedByNameAndText) {
  for (const std::string text :
       {"", "-", "-1", "3-", "3-2", "0--1", "1,2", "1-2-3", "1-2x", "a", "1 -2", "2147483648", "0-2147483648"}) {
    EXPECT_TRUE(fails_with(parse_layer_range("--layers", text), StatusCode::kInvalidArgument,
                           {"--layers: '" + text + "'", "accepted: N or A-B with A <= B"}));
  }
}

}  // namespace
}  // namespace dsv4rt::cli
