// Sequences that a benchmark decodes together, and how much of each is cached.
#pragma once

#include <cstdint>
#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt {

struct StepShape {
  std::int32_t batch = 1;              // sequences, up to 2^24
  std::int64_t context_tokens = 8192;  // cached tokens of every sequence, or of the longest, when timing starts
  std::int64_t shortest_tokens = 0;    // no sequence has fewer; 0: all are alike
};

// Cached tokens of a sequence in [0, batch). The first one is the longest; the others lie evenly between it and the
// shortest on a logarithmic scale, and in no order of length.
std::int64_t context_of(const StepShape& shape, std::int32_t sequence);

// Those of all sequences.
std::int64_t cached_tokens(const StepShape& shape);

// "8192", or "1024..8192".
std::string context_text(const StepShape& shape);

// kInvalidArgument naming the number for a shape that no step has.
Status check_step_shape(const StepShape& shape);

}  // namespace dsv4rt
