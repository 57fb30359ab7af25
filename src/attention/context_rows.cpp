#include "attention/context_rows.h"

#include <algorithm>

namespace dsv4rt {
namespace {

// Half-open, and how many places need its rows.
struct Span {
  std::int32_t first = 0;
  std::int32_t end = 0;
  std::int32_t readers = 0;
};

// Ascending and disjoint, within [0, tokens): each row with the most readers that any of the spans gives it. Neighbours
// have different ones.
std::vector<Span> merged(std::span<const Span> spans, std::int32_t tokens, std::int32_t ranks) {
  struct End {
    std::int32_t at;
    std::int32_t readers;
    std::int32_t change;  // how many more spans with these readers are open behind it
  };
  std::vector<End> ends;
  for (const Span& span : spans) {
    const std::int32_t first = std::max(span.first, 0);
    const std::int32_t end = std::min(span.end, tokens);
    if (first >= end) continue;
    ends.push_back({first, span.readers, 1});
    ends.push_back({end, span.readers, -1});
  }
  std::sort(ends.begin(), ends.end(), [](const End& a, const End& b) { return a.at < b.at; });
  std::vector<std::int32_t> open(static_cast<std::size_t>(ranks) + 1);  // index: readers
  std::vector<Span> result;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    open[static_cast<std::size_t>(ends[i].readers)] += ends[i].change;
    const Span next{.first = ends[i].at, .end = ends[i + 1].at};
    if (next.first == next.end) continue;
    std::int32_t readers = ranks;
    while (readers > 0 && open[static_cast<std::size_t>(readers)] == 0) --readers;
    if (readers == 0) continue;
    if (!result.empty() && result.back().end == next.first && result.back().readers == readers) {
      result.back().end = next.end;
    } else {
      result.push_back({next.first, next.end, readers});
    }
  }
  return result;
}

// The rows of a piece that every rank makes what they complete of, from its first row on.
std::int32_t rows_behind_cut(RowRange piece, std::int32_t behind_cut) {
  return piece.first == 0 ? 0 : std::min(piece.count, behind_cut);
}

}  // namespace

std::vector<OwnedRows> ContextRows::shared(const SharedReach& reach) const {
  const std::int32_t tokens = split_.tokens();
  std::vector<Span> spans;
  for (std::int32_t index = 0; index < split_.pieces(); ++index) {
    const RowRange piece = split_.piece(index);
    if (piece.count == 0 || piece.first == 0) continue;
    spans.push_back({.first = piece.first - reach.before_cut,
                     .end = piece.first + reach.behind_cut,
                     .readers = readers_before(index)});
  }
  for (std::size_t s = 0; s + 1 < first_tokens_.size(); ++s) {
    const std::int32_t end = first_tokens_[s + 1];
    spans.push_back({.first = std::max(first_tokens_[s], end - reach.at_end), .end = end, .readers = keepers()});
  }
  for (const BoundaryCapture& capture : captures_) {
    const std::int32_t end = capture.first_token + (capture.boundary - capture.start);
    spans.push_back(
        {.first = std::max(capture.first_token, end - reach.before_boundary), .end = end, .readers = keepers()});
  }

  std::vector<OwnedRows> rows;
  std::int32_t index = 0;
  for (Span span : merged(spans, tokens, split_.ranks())) {
    while (span.first < span.end) {
      RowRange piece = split_.piece(index);
      while (piece.first + piece.count <= span.first) piece = split_.piece(++index);
      const std::int32_t end = std::min(span.end, piece.first + piece.count);
      rows.push_back({.rows = {.first = span.first, .count = end - span.first},
                      .owner = split_.owner(index),
                      .readers = span.readers});
      span.first = end;
    }
  }
  return rows;
}

std::vector<RowRange> ContextRows::behind_cuts(std::int32_t behind_cut, std::int32_t rank) const {
  std::vector<RowRange> ranges;
  for (std::int32_t index = 0; index < split_.pieces() && split_.place(rank) < readers_before(index); ++index) {
    const RowRange piece = split_.piece(index);
    const std::int32_t count = rows_behind_cut(piece, behind_cut);
    if (count == 0) continue;
    if (!ranges.empty() && ranges.back().first + ranges.back().count == piece.first) {
      ranges.back().count += count;
    } else {
      ranges.push_back({.first = piece.first, .count = count});
    }
  }
  return ranges;
}

std::vector<OwnedRows> ContextRows::owned(std::int32_t behind_cut) const {
  std::vector<OwnedRows> rows;
  for (std::int32_t index = 0; index < split_.pieces(); ++index) {
    const RowRange piece = split_.piece(index);
    const std::int32_t skipped = rows_behind_cut(piece, behind_cut);
    if (piece.count == skipped) continue;
    rows.push_back({.rows = {.first = piece.first + skipped, .count = piece.count - skipped},
                    .owner = split_.owner(index),
                    .readers = readers_before(index + 1)});
  }
  return rows;
}

std::int32_t ContextRows::sequences_in(RowRange rows) const {
  std::int32_t count = 0;
  for (std::size_t s = 0; s + 1 < first_tokens_.size(); ++s) {
    if (first_tokens_[s] < rows.first + rows.count && first_tokens_[s + 1] > rows.first) ++count;
  }
  return count;
}

}  // namespace dsv4rt
