// The sum of the ranks' terms in host memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dsv4rt/communicator.h"

namespace dsv4rt {

// sum[i] = terms[0][i] + terms[1][i] + ... in FP32, rounded once to the sum's type. `terms` is [ranks] parts, each of
// `elements` elements, `part_bytes` bytes apart. `sum` does not overlap them.
void sum_in_rank_order(const std::byte* terms, std::size_t part_bytes, std::int32_t ranks, ElementType terms_type,
                       void* sum, ElementType sum_type, std::int64_t elements);

}  // namespace dsv4rt
