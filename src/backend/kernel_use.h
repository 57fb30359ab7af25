// Tells people which kernel serves an operation: what `dsv4rt doctor --kernels` prints.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4rt/linear_precision.h"
#include "dsv4rt/model.h"
#include "layout/row_format.h"

namespace dsv4rt {

struct KernelUse {
  std::string operation;  // operation of Ops, with the kind of layer where kinds differ: "attend csa"
  std::string steps;      // tokens of a step and context: "1-14 tokens, context 8192"; empty: all
  std::string kernel;
  std::string slow;  // why not the fastest that the machine has; empty where it is

  bool operator==(const KernelUse&) const = default;
};

// What is asked about.
struct KernelQuestion {
  ModelConfig config;
  RowFormat row_format = RowFormat::kFp8DsMla;
  IndexKeyFormat index_format = IndexKeyFormat::kMxfp4;
  LinearPrecision linear_precision = LinearPrecision::kExact;
  std::int32_t csa_rows_per_block = 64;
  std::int32_t hca_rows_per_block = 64;
  std::int64_t context_tokens = 8192;
  std::int32_t max_step_tokens = 8192;
};

}  // namespace dsv4rt
