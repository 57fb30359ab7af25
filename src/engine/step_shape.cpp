#include "engine/step_shape.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/arithmetic.h"

namespace dsv4rt {
namespace {

// Up to so many tokens of 128 heads, and of 64, a GPU of 132 multiprocessors has two of them for each 64 heads of a
// token: attention is by pairs of blocks then, by slower ones beyond (backend/cuda/kernels/attend/pair_plan.cuh). A
// step of 65 sequences takes 4.50 ms padded to 80 and 4.16 padded to 66 (V4-Flash, 8,192 tokens each, one H200).
constexpr std::array<std::int32_t, 2> kPairedTokens = {33, 66};
// With up to 72 tokens of 128 heads, and 144 of 64, 64 heads of a token each are few more than multiprocessors, and
// blocks hand tokens on to one another; with more, attention takes a second round (backend/cuda/kernels/attend/
// even_plan.h).
constexpr std::array<std::int32_t, 2> kHandedTokens = {72, 144};

// Up to 2,560 rows, of four tokens each, are scored and selected by one kernel, more by slower ones (kMostFewRows of
// backend/cuda/kernels/indexer_topk/params.h). A smallest shape of 2,048 tokens, whose rows are all selected, gains
// nothing.
constexpr std::int32_t kSmallestContext = 4096;
constexpr std::int32_t kFewRowsContext = 10240;

}  // namespace

std::int32_t token_bucket(std::int32_t tokens) {
  for (const std::int32_t pairs : kPairedTokens) {
    if (tokens <= pairs && tokens > pairs / 8 * 8) return pairs;
  }
  for (const std::int32_t handed : kHandedTokens) {
    if (tokens <= handed && tokens > handed / 9 * 8) return handed;
  }
  if (tokens <= 4) return static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(std::max(tokens, 1))));
  std::int32_t step = 64;
  if (tokens <= 64) {
    step = 8;
  } else if (tokens <= 128) {
    step = 16;
  } else if (tokens <= 256) {
    step = 32;
  }
  return round_up(tokens, step);
}

std::int32_t entry_bucket(std::int32_t longest_entry, std::int32_t draft_budget, std::int32_t tokens) {
  const auto bucket = static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint32_t>(std::max(longest_entry, 1))));
  const bool within_drafts = longest_entry <= draft_budget + 1;
  return std::min({bucket, within_drafts ? draft_budget + 1 : bucket, std::max(tokens, longest_entry)});
}

std::int32_t context_bucket(std::int32_t context_end) {
  constexpr std::uint32_t kLargest = std::numeric_limits<std::int32_t>::max();
  const auto rounded =
      std::min(kLargest, std::bit_ceil(static_cast<std::uint32_t>(std::max(context_end, kSmallestContext))));
  const auto bucket = static_cast<std::int32_t>(rounded);
  return context_end <= kFewRowsContext ? std::min(bucket, kFewRowsContext) : bucket;
}

}  // namespace dsv4rt
