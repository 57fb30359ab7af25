// Which rows of a step that is dealt out every rank needs, held against what every token reads.
#include "attention/context_rows.h"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/workspace.h"
#include "backend/ops.h"
#include "unit/backend/ops_fixture.h"

namespace dsv4rt {
namespace {

// A step of several sequences with kept boundaries, and padding behind them.
struct Drawn {
  std::vector<std::int32_t> first_tokens{0};
  std::vector<BoundaryCapture> captures;
  std::int32_t tokens = 0;

  Drawn(test::Random& random, std::int32_t most_tokens) {
    const auto pick = [&](std::int32_t from, std::int32_t to) {
      return from + static_cast<std::int32_t>(random.bits() % static_cast<std::uint64_t>(to - from + 1));
    };
    for (std::int32_t sequences = pick(1, 6); sequences > 0; --sequences) {
      const std::int32_t first = first_tokens.back();
      const std::int32_t count = pick(1, std::max(1, most_tokens / 4));
      const std::int32_t start = pick(0, 300);
      for (std::int32_t boundary = (start / 128 + 1) * 128; boundary <= start + count; boundary += 128) {
        if (pick(0, 2) == 0) {
          captures.push_back({.first_token = first, .start = start, .boundary = boundary, .state = 0});
        }
      }
      first_tokens.push_back(first + count);
    }
    tokens = first_tokens.back() + pick(0, 20);
  }
};

std::vector<int> owners_of(const ContextSplit& split) {
  std::vector<int> owners(static_cast<std::size_t>(split.tokens()));
  for (std::int32_t index = 0; index < split.pieces(); ++index) {
    const RowRange piece = split.piece(index);
    std::fill_n(owners.begin() + piece.first, piece.count, split.owner(index));
  }
  return owners;
}

void draw_steps(const std::function<void(const ContextSplit& split, const Drawn& drawn)>& look) {
  test::Random random(17);
  for (int trial = 0; trial < 400 && !testing::Test::HasFatalFailure(); ++trial) {
    const auto ranks = std::array{2, 3, 4, 8}[random.bits() % 4];
    const Drawn drawn(random, std::array{20, 200, 3000}[random.bits() % 3]);
    look(ContextSplit(drawn.tokens, ranks), drawn);
  }
}

// Compressed rows: whoever pools a row has all tokens that it may be pooled from, own ones or shared ones.
TEST(ContextRows, WhoMakesARowHasItsTokens) {
  draw_steps([](const ContextSplit& split, const Drawn& drawn) {
    const ContextRows rows(split, drawn.first_tokens, drawn.captures);
    const std::vector<int> owners = owners_of(split);
    for (const std::int32_t pooled : {1, 8, 128}) {
      std::vector<bool> shared(owners.size());
      std::int32_t end = 0;
      for (const OwnedRows& of : rows.shared({.before_cut = pooled - 1, .behind_cut = pooled - 1})) {
        ASSERT_GE(of.rows.first, end);
        ASSERT_GT(of.rows.count, 0);
        end = of.rows.first + of.rows.count;
        ASSERT_LE(end, split.tokens());
        for (std::int32_t t = of.rows.first; t < end; ++t) {
          ASSERT_EQ(owners[static_cast<std::size_t>(t)], of.owner);
          shared[static_cast<std::size_t>(t)] = true;
        }
      }
      const auto first_token = [&](std::int32_t t) {
        return *(std::upper_bound(drawn.first_tokens.begin(), drawn.first_tokens.end(), t) - 1);
      };
      std::vector<int> makers(owners.size(), -1);
      for (const OwnedRows& of : rows.owned(pooled - 1)) {
        for (std::int32_t t = of.rows.first; t < of.rows.first + of.rows.count; ++t) {
          ASSERT_EQ(std::exchange(makers[static_cast<std::size_t>(t)], of.owner), -1);
          ASSERT_EQ(owners[static_cast<std::size_t>(t)], of.owner);
          for (std::int32_t read = std::max(first_token(t), t - pooled + 1); read <= t; ++read) {
            ASSERT_EQ(owners[static_cast<std::size_t>(read)], of.owner) << t << " reads " << read;
          }
        }
      }
      for (const RowRange range : rows.behind_cuts(pooled - 1, 0)) {
        for (std::int32_t t = range.first; t < range.first + range.count; ++t) {
          ASSERT_EQ(std::exchange(makers[static_cast<std::size_t>(t)], 99), -1);
          for (std::int32_t read = std::max(first_token(t), t - pooled + 1); read <= t; ++read) {
            ASSERT_TRUE(shared[static_cast<std::size_t>(read)]) << t << " reads " << read;
          }
        }
      }
      ASSERT_EQ(std::count(makers.begin(), makers.end(), -1), 0) << "a token is nobody's";
    }
  });
}

// Where one rank has the cache afterwards, each has what its own tokens read, and the first place has everything: rows
// that tokens complete, the windows before its pieces, and the ends of sequences.
TEST(ContextRows, OneRankHasEverythingAndTheOthersWhatTheyRead) {
  std::int64_t spared = 0;
  draw_steps([&](const ContextSplit& drawn_split, const Drawn& drawn) {
    const ContextSplit split(drawn_split.tokens(), drawn_split.ranks(), drawn.tokens % drawn_split.ranks());
    const ContextRows rows(split, drawn.first_tokens, {}, CacheOn::kFirstPlace);
    const std::vector<int> owners = owners_of(split);
    const auto tokens = static_cast<std::size_t>(split.tokens());
    for (const std::int32_t pooled : {1, 8, 128}) {
      const SharedReach reach{.before_cut = 127, .behind_cut = pooled - 1, .at_end = 130};
      const std::vector<OwnedRows> shared = rows.shared(reach);
      const std::vector<OwnedRows> owned = rows.owned(pooled - 1);
      for (std::int32_t rank = 0; rank < split.ranks(); ++rank) {
        std::vector<bool> has(tokens);  // the token's projections and window row
        for (std::size_t t = 0; t < tokens; ++t) has[t] = owners[t] == rank;
        for (const OwnedRows& of : shared) {
          if (rows.reads(of, rank)) std::fill_n(has.begin() + of.rows.first, of.rows.count, true);
          ASSERT_TRUE(of.owner == rank || !rows.reads(of, rank) || rows.travel(of));
        }
        std::vector<bool> completed(tokens);  // what the token completes
        for (const OwnedRows& of : owned) {
          const bool here = of.owner == rank || rows.reads(of, rank);
          if (here) std::fill_n(completed.begin() + of.rows.first, of.rows.count, true);
          spared += here ? 0 : of.rows.count;
        }
        for (const RowRange range : rows.behind_cuts(pooled - 1, rank)) {
          for (std::int32_t t = range.first; t < range.first + range.count; ++t) {
            for (std::int32_t read = std::max(0, t - pooled + 1); read <= t; ++read) {
              ASSERT_TRUE(has[static_cast<std::size_t>(read)]) << t << " reads " << read;
            }
            completed[static_cast<std::size_t>(t)] = true;
          }
        }
        std::int32_t last = -1;  // the rank's last token
        for (std::int32_t t = 0; t < split.tokens(); ++t) {
          if (owners[static_cast<std::size_t>(t)] != rank) continue;
          last = t;
          for (std::int32_t read = std::max(0, t - 127); read <= t; ++read) {
            ASSERT_TRUE(has[static_cast<std::size_t>(read)]) << t << " reads " << read;
          }
        }
        if (rows.keeps(rank)) {
          ASSERT_EQ(split.place(rank), 0);
          last = split.tokens() - 1;
          for (std::size_t s = 0; s + 1 < drawn.first_tokens.size(); ++s) {
            const std::int32_t end = drawn.first_tokens[s + 1];
            for (std::int32_t t = std::max(drawn.first_tokens[s], end - reach.at_end); t < end; ++t) {
              ASSERT_TRUE(has[static_cast<std::size_t>(t)]);
            }
          }
        }
        const auto end = completed.begin() + last + 1;
        ASSERT_EQ(std::find(completed.begin(), end, false), end) << "rank " << rank << " of " << split.ranks();
      }
    }
  });
  EXPECT_GT(spared, 0);
}

// Rings, boundary states and windows: every rank has their rows.
TEST(ContextRows, EndsBoundariesAndWindowsAreShared) {
  draw_steps([](const ContextSplit& split, const Drawn& drawn) {
    const ContextRows rows(split, drawn.first_tokens, drawn.captures);
    const SharedReach reach{.before_cut = 127, .behind_cut = 0, .at_end = 130, .before_boundary = 128};
    std::vector<bool> shared(static_cast<std::size_t>(split.tokens()));
    std::int64_t count = 0;
    for (const OwnedRows& of : rows.shared(reach)) {
      std::fill_n(shared.begin() + of.rows.first, of.rows.count, true);
      count += of.rows.count;
    }
    std::vector<bool> needed(shared.size());
    const auto need = [&](std::int32_t first, std::int32_t end) {
      for (std::int32_t t = std::max(first, 0); t < end; ++t) needed[static_cast<std::size_t>(t)] = true;
    };
    for (std::int32_t index = 1; index < split.pieces(); ++index) {
      const RowRange piece = split.piece(index);
      if (piece.count > 0) need(piece.first - reach.before_cut, piece.first);
    }
    for (std::size_t s = 0; s + 1 < drawn.first_tokens.size(); ++s) {
      const std::int32_t end = drawn.first_tokens[s + 1];
      need(std::max(drawn.first_tokens[s], end - reach.at_end), end);
    }
    for (const BoundaryCapture& capture : drawn.captures) {
      const std::int32_t end = capture.first_token + capture.boundary - capture.start;
      need(std::max(capture.first_token, end - reach.before_boundary), end);
    }
    ASSERT_TRUE(shared == needed);
    ASSERT_EQ(count, std::count(needed.begin(), needed.end(), true));
  });
}

// The workspace has a place for all that a step packs.
TEST(ContextRows, PackedRowsFitTheWorkspace) {
  const ModelConfig config = ModelConfig::from_file(DSV4RT_SOURCE_DIR "/configs/tiny.json").value();
  const LayerSchedule schedule = LayerSchedule::create(config).value();
  std::int64_t closest = 0;
  draw_steps([&](const ContextSplit& split, const Drawn& drawn) {
    const ContextRows rows(split, drawn.first_tokens, drawn.captures);
    const auto sequences = static_cast<std::int32_t>(drawn.first_tokens.size()) - 1;
    const std::int64_t planned = packed_rows_bytes(schedule, RowFormat::kFp8DsMla, IndexKeyFormat::kMxfp4,
                                                   split.tokens(), sequences, split.pieces() / 2);
    for (const std::int32_t ratio : {4, 128}) {
      std::int64_t used = 0;
      for (const OwnedRows& of : rows.owned(ratio == 4 ? 7 : 127)) {
        const std::int32_t pieces_sequences = rows.sequences_in(of.rows);
        if (pieces_sequences == 0) continue;
        const std::int32_t places = packed_places(of.rows.count, ratio, pieces_sequences);
        used += block_shape(RowFormat::kFp8DsMla, places).block_bytes;
        if (ratio == 4) used += block_shape(IndexKeyFormat::kMxfp4, places).block_bytes;
      }
      ASSERT_LE(used, planned);
      closest = std::max(closest, used * 100 / planned);
    }
  });
  EXPECT_GE(closest, 90) << "percent: the plan is far too large";
}

}  // namespace
}  // namespace dsv4rt
