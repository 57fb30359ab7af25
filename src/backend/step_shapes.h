// StepShapes: the largest calls that the steps of an engine make, from which a backend plans its scratch.
#pragma once

#include <cstdint>
#include <vector>

namespace dsv4rt {

// One call of Ops::linear or normed_linear.
struct LinearGroupShape {
  std::int64_t matrices = 0;
  std::int64_t inputs = 0;        // different x among them
  std::int64_t in_features = 0;   // inputs of each matrix
  std::int64_t out_features = 0;  // outputs of the widest matrix
};

// What the layers of one compression ratio keep and read.
struct CompressedRowsShape {
  std::int64_t ratio = 0;  // tokens per row
  // Heads of layers with an indexer; 0 without.
  std::int32_t index_heads = 0;
  std::int64_t top_k = 0;
};

struct StepShapes {
  std::int32_t max_tokens = 0;          // tokens of a step, padding included
  std::int64_t max_context_tokens = 0;  // tokens of a sequence, the step's tokens included
  std::int32_t heads = 0;
  std::int64_t window = 0;  // rows of the sliding window
  std::vector<LinearGroupShape> linears{};
  std::vector<CompressedRowsShape> compressed{};
};

}  // namespace dsv4rt
