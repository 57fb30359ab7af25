// CPU operations that attend to rows somebody else selected: two engines whose scores differ in the last
// bits may choose other rows of nearly the same score, and their outputs could not be compared.
#pragma once

#include <algorithm>

#include "support/recording_ops.h"
#include "tools/lib/engine_inspector.h"

namespace dsv4rt::test {

class ForcedSelectionOps : public RecordingOps {
 public:
  // `inner` works on host memory.
  ForcedSelectionOps(Ops& inner, const SelectedRows& forced) : RecordingOps(&inner), forced_(forced) {}

  // What the inner operations chose.
  SelectedRows own;

  Status select_rows(const SelectRowsParams& p) override {
    const Status status = RecordingOps::select_rows(p);
    if (!status.ok()) return status;
    own.top_k = p.top_k;
    own.rows.assign(p.selected, p.selected + forced_.rows.size());
    own.counts.assign(p.selected_count, p.selected_count + forced_.counts.size());
    std::ranges::copy(forced_.rows, p.selected);
    std::ranges::copy(forced_.counts, p.selected_count);
    return {};
  }

 private:
  const SelectedRows& forced_;
};

}  // namespace dsv4rt::test
