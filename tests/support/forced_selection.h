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
  ForcedSelectionOps(Ops& inner, const TopkRows& forced) : RecordingOps(&inner), forced_(forced) {}

  // What the inner operations chose.
  TopkRows own;

  Status indexer_topk(const IndexerTopkParams& p) override {
    const Status status = RecordingOps::indexer_topk(p);
    if (!status.ok()) return status;
    own.top_k = p.top_k;
    own.rows.assign(p.topk_indices, p.topk_indices + forced_.rows.size());
    own.counts.assign(p.topk_count, p.topk_count + forced_.counts.size());
    std::ranges::copy(forced_.rows, p.topk_indices);
    std::ranges::copy(forced_.counts, p.topk_count);
    return {};
  }

 private:
  const TopkRows& forced_;
};

}  // namespace dsv4rt::test
