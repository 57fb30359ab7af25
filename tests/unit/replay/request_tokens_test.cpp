#include "replay/request_tokens.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "replay_fixture.h"

namespace dsv4rt::replay::test {
namespace {

std::vector<std::int32_t> all_ids(const Request& request, std::uint64_t seed = 1) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(request.input_tokens + request.output_tokens));
  RequestTokens(seed).token_ids(request, 0, ids);
  return ids;
}

std::size_t common_prefix(const std::vector<std::int32_t>& a, const std::vector<std::int32_t>& b) {
  const std::size_t shorter = std::min(a.size(), b.size());
  return static_cast<std::size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(shorter), b.begin()).first - a.begin());
}

Request with_blocks(std::int64_t index, std::vector<std::uint64_t> ids) {
  Request made = request(index, 0, 100, 20);
  made.block_tokens = 32;
  made.block_ids = std::move(ids);
  return made;
}

TEST(RequestTokens, EqualBlockIdsAreEqualTokensAndNothingElseIs) {
  const auto a = all_ids(with_blocks(0, {7, 8, 9, 10}));
  EXPECT_EQ(common_prefix(a, all_ids(with_blocks(1, {7, 8, 9, 10}))), 100U);  // outputs differ
  EXPECT_EQ(common_prefix(a, all_ids(with_blocks(1, {7, 8, 1, 10}))), 64U);
  EXPECT_EQ(common_prefix(a, all_ids(with_blocks(1, {7, 8}))), 64U);  // the rest is the request's own
  EXPECT_EQ(common_prefix(all_ids(request(0, 0, 100, 20)), all_ids(request(1, 0, 100, 20))), 0U);
  EXPECT_EQ(a, all_ids(with_blocks(0, {7, 8, 9, 10})));
  EXPECT_EQ(common_prefix(a, all_ids(with_blocks(0, {7, 8, 9, 10}), 2)), 0U);
  EXPECT_TRUE(std::all_of(a.begin(), a.end(), [](std::int32_t id) { return id >= 0; }));
}

TEST(RequestTokens, AnyPartIsThatPartOfTheWhole) {
  const Request made = with_blocks(3, {7, 8, 9});  // ids for 96 of 100 tokens
  const auto whole = all_ids(made);
  for (const std::size_t first : {0U, 31U, 32U, 95U, 96U, 99U, 100U, 119U}) {
    for (const std::size_t count : {1U, 2U, 33U, 70U}) {
      std::vector<std::int32_t> part(std::min(count, whole.size() - first));
      RequestTokens(1).token_ids(made, static_cast<std::int64_t>(first), part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(first)));
    }
  }
}

TEST(RequestTokens, DraftsAreRightAsOftenAsAskedAndWrongAfterTheFirstWrongOne) {
  const RequestTokens tokens(5);
  Request made = request(0, 0, 10, 100'000);
  std::vector<std::int32_t> guess(4);
  std::vector<std::int32_t> truth(4);
  std::int64_t right = 0;
  for (std::int64_t at = 10; at < 40'010; at += 4) {
    const std::int32_t leading = tokens.draft(made, at, 0.7, guess);
    tokens.token_ids(made, at, truth);
    for (std::int32_t i = 0; i < 4; ++i) {
      const auto which = static_cast<std::size_t>(i);
      EXPECT_EQ(guess[which] == truth[which], i < leading);
    }
    right += leading;
  }
  // 0.7 + 0.49 + 0.343 + 0.2401 of four.
  EXPECT_NEAR(static_cast<double>(right) / 10'000, 1.7731, 0.05);
  EXPECT_EQ(tokens.draft(made, 10, 0, guess), 0);
  EXPECT_EQ(tokens.draft(made, 10, 1, guess), 4);
}

}  // namespace
}  // namespace dsv4rt::replay::test
