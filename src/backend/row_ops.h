// RowOps: the parts of larger operations, one by one.
//
// No layer calls them: tests hold the large operations against them, benchmarks time them, and profiles that are
// not whole models (the seed compressor) are driven through them. Contract as in ops.h.
#pragma once

#include "backend/ops.h"

namespace dsv4rt {

// Writes the step's last ring_rows tokens of every sequence into its state ring (kv, score + ape).
// Runs after compress of the same step.
struct StateStoreParams {
  StepView step;
  CompressorInput input;
  StateRing state;
};

class RowOps : public Ops {
 public:
  virtual Status rms_norm(const RmsNormParams& params) = 0;
  virtual Status query(const QueryParams& params) = 0;
  virtual Status index_query(const IndexQueryParams& params) = 0;
  virtual Status swa_kv(const SwaKvParams& params) = 0;
  virtual Status compress(const CompressParams& params) = 0;
  virtual Status state_store(const StateStoreParams& params) = 0;
};

}  // namespace dsv4rt
