// Context parallelism: which rows of a step more ranks need than the one that computes them.
//
// A cut is the first row of a piece but the first. A compressed row that tokens of one piece complete is its owner's to
// make, but behind a cut: there it is pooled from tokens before the cut as well. Every rank gets the projections of the
// tokens around a cut and makes these rows itself. Every rank also needs what rings keep of the ends of sequences, what
// boundary states keep, and the window before a cut.
//
// Where one rank alone has the sequences afterwards (StepOptions::hand_over_to), it is at place 0 of the split and so
// has the last piece: it reads all rows in any case. The others get what their own tokens read: rows before their later
// piece, and nothing of the ends of sequences. Readers of a row are thus always the first places of the split.
//
// All of it follows from rows alone, whatever the positions: a few rows more are exchanged than blocks that a cut goes
// through have, and no position need be looked at on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/context_split.h"
#include "backend/boundary_state.h"

namespace dsv4rt {

// How far from cuts, ends and boundaries every rank needs rows of one kind.
struct SharedReach {
  std::int32_t before_cut = 0;
  std::int32_t behind_cut = 0;
  std::int32_t at_end = 0;           // the last rows that every sequence has in the step
  std::int32_t before_boundary = 0;  // rows before every kept boundary
};

struct OwnedRows {
  RowRange rows;
  std::int32_t owner = 0;    // a rank
  std::int32_t readers = 0;  // the ranks at so many places of the split, from 0 on, need them
};

// Who has the whole cache after a step.
enum class CacheOn : std::uint8_t { kEveryRank, kFirstPlace };

class ContextRows {
 public:
  // `first_tokens`: StepView::sequence_first_token on the host, [sequences + 1]. Both outlive the object.
  ContextRows(const ContextSplit& split, std::span<const std::int32_t> first_tokens,
              std::span<const BoundaryCapture> captures, CacheOn cache_on = CacheOn::kEveryRank)
      : split_(split), first_tokens_(first_tokens), captures_(captures), cache_on_(cache_on) {}

  // Rows that other ranks need as well: ascending, none twice, those of an entry in one piece and with the same
  // readers.
  [[nodiscard]] std::vector<OwnedRows> shared(const SharedReach& reach) const;
  // The first `behind_cut` rows of every piece behind a cut that the rank reads behind, as many as it has: ascending,
  // neighbours as one.
  [[nodiscard]] std::vector<RowRange> behind_cuts(std::int32_t behind_cut, std::int32_t rank) const;
  // The other rows of every piece that has any. Their readers are those of what they complete.
  [[nodiscard]] std::vector<OwnedRows> owned(std::int32_t behind_cut) const;
  // Sequences that have rows in the range.
  [[nodiscard]] std::int32_t sequences_in(RowRange rows) const;
  // Whether the rank is among the readers; whether anybody but the owner is.
  [[nodiscard]] bool reads(const OwnedRows& rows, std::int32_t rank) const noexcept {
    return split_.place(rank) < rows.readers;
  }
  [[nodiscard]] bool travel(const OwnedRows& rows) const noexcept {
    return rows.readers > 1 || (rows.readers == 1 && rows.owner != split_.first());
  }
  // Whether the rank has the whole cache afterwards.
  [[nodiscard]] bool keeps(std::int32_t rank) const noexcept { return split_.place(rank) < keepers(); }

 private:
  [[nodiscard]] std::int32_t keepers() const noexcept { return cache_on_ == CacheOn::kEveryRank ? split_.ranks() : 1; }
  // Of what lies before a piece.
  [[nodiscard]] std::int32_t readers_before(std::int32_t index) const noexcept {
    return cache_on_ == CacheOn::kEveryRank ? split_.ranks() : split_.places_from(index);
  }

  ContextSplit split_;
  std::span<const std::int32_t> first_tokens_;
  std::span<const BoundaryCapture> captures_;
  CacheOn cache_on_;
};

}  // namespace dsv4rt
