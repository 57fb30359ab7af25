// Shapes that captured steps are rounded up to, so that few graphs serve every step.
#pragma once

#include <cstdint>

namespace dsv4rt {

// Rows of x: 1, 2, 4, then multiples of 8 to 64, of 16 to 128, of 32 to 256, of 64 beyond; besides 33 and 66, with
// which attention still has the places that it has with 32 and 64, and 72 and 144, few enough beyond those. The waste
// is at most a quarter from 33 rows on.
std::int32_t token_bucket(std::int32_t tokens);

// Most tokens that one sequence has in a step of `tokens` rows: powers of two, but no more than draft budget + 1 for
// what is no longer than that, since rings keep what such a step reads, and no more than the rows there are. It bounds
// grids and says whether rings keep what is read (ring_keeps_needed_rows), for which a bucket and what it holds agree.
std::int32_t entry_bucket(std::int32_t longest_entry, std::int32_t draft_budget, std::int32_t tokens);

// One past the largest position: powers of two from 4,096 on, and 10,240, up to which selection is faster. It bounds
// grids, not results.
std::int32_t context_bucket(std::int32_t context_end);

}  // namespace dsv4rt
