// RowOps: parts of larger operations that no layer calls by themselves. Tests hold the large operations against them.
// Contract as in ops.h.
#pragma once

#include "backend/ops.h"

namespace dsv4rt {

class RowOps : public Ops {
 public:
  virtual Status rms_norm(const RmsNormParams& params) = 0;
};

}  // namespace dsv4rt
