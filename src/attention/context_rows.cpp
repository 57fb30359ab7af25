#include "attention/context_rows.h"

#include <algorithm>

namespace dsv4rt {
namespace {

// Half-open.
struct Span {
  std::int32_t first = 0;
  std::int32_t end = 0;
};

// Ascending, disjoint and without touching neighbours, within [0, tokens).
std::vector<Span> merged(std::vector<Span> spans, std::int32_t tokens) {
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.first < b.first; });
  std::vector<Span> result;
  for (Span span : spans) {
    span = {.first = std::max(span.first, 0), .end = std::min(span.end, tokens)};
    if (span.first >= span.end) continue;
    if (!result.empty() && span.first <= result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
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
    spans.push_back({.first = piece.first - reach.before_cut, .end = piece.first + reach.behind_cut});
  }
  for (std::size_t s = 0; s + 1 < first_tokens_.size(); ++s) {
    const std::int32_t end = first_tokens_[s + 1];
    spans.push_back({.first = std::max(first_tokens_[s], end - reach.at_end), .end = end});
  }
  for (const BoundaryCapture& capture : captures_) {
    const std::int32_t end = capture.first_token + (capture.boundary - capture.start);
    spans.push_back({.first = std::max(capture.first_token, end - reach.before_boundary), .end = end});
  }

  std::vector<OwnedRows> rows;
  std::int32_t index = 0;
  for (Span span : merged(std::move(spans), tokens)) {
    while (span.first < span.end) {
      RowRange piece = split_.piece(index);
      while (piece.first + piece.count <= span.first) piece = split_.piece(++index);
      const std::int32_t end = std::min(span.end, piece.first + piece.count);
      rows.push_back({.rows = {.first = span.first, .count = end - span.first}, .owner = split_.owner(index)});
      span.first = end;
    }
  }
  return rows;
}

std::vector<RowRange> ContextRows::behind_cuts(std::int32_t behind_cut) const {
  std::vector<RowRange> ranges;
  for (std::int32_t index = 0; index < split_.pieces(); ++index) {
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
    rows.push_back(
        {.rows = {.first = piece.first + skipped, .count = piece.count - skipped}, .owner = split_.owner(index)});
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
