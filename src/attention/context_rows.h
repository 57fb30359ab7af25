// Context parallelism: which rows of a step more ranks need than the one that computes them.
//
// A cut is the first row of a piece but the first. A compressed row that tokens of one piece complete is its owner's to
// make, but behind a cut: there it is pooled from tokens before the cut as well. Every rank gets the projections of the
// tokens around a cut and makes these rows itself. Every rank also needs what rings keep of the ends of sequences, what
// boundary states keep, and the window before a cut.
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
  std::int32_t owner = 0;  // a rank
};

class ContextRows {
 public:
  // `first_tokens`: StepView::sequence_first_token on the host, [sequences + 1]. Both outlive the object.
  ContextRows(const ContextSplit& split, std::span<const std::int32_t> first_tokens,
              std::span<const BoundaryCapture> captures)
      : split_(split), first_tokens_(first_tokens), captures_(captures) {}

  // Rows that every rank needs: ascending, none twice, those of an entry in one piece.
  [[nodiscard]] std::vector<OwnedRows> shared(const SharedReach& reach) const;
  // The first `behind_cut` rows of every piece behind a cut, as many as it has: ascending, neighbours as one.
  [[nodiscard]] std::vector<RowRange> behind_cuts(std::int32_t behind_cut) const;
  // The other rows of every piece that has any.
  [[nodiscard]] std::vector<OwnedRows> owned(std::int32_t behind_cut) const;
  // Sequences that have rows in the range.
  [[nodiscard]] std::int32_t sequences_in(RowRange rows) const;

 private:
  ContextSplit split_;
  std::span<const std::int32_t> first_tokens_;
  std::span<const BoundaryCapture> captures_;
};

}  // namespace dsv4rt
