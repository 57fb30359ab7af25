// Shapes that captured steps are rounded up to, so that few graphs serve every step.
#pragma once

#include <cstdint>

namespace dsv4rt {

// Rows of x: 1, 2, 4, then multiples of 8 to 64, of 16 to 128, of 32 to 256, of 64 beyond. The waste stays
// under a quarter from 8 rows on.
std::int32_t token_bucket(std::int32_t tokens);

// One past the largest position: powers of two from 4096 on. It bounds grids, not results.
std::int32_t context_bucket(std::int32_t context_end);

}  // namespace dsv4rt
