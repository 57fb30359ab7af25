// What the weights of attention are relative to, on every backend.
//
// A weight is exp(s - m), rounded to BF16 before it multiplies values; m cancels but for this rounding. Of selected
// rows, and of few others, m is the greatest score. A token with more rows than that takes a multiple of ln 2 close to
// it: weights relative to different powers of two round alike, so that rows can be weighed, in parts, before all scores
// are known, and the parts' sums be scaled exactly.
#pragma once

#include <cstdint>

namespace dsv4rt {

inline constexpr std::int32_t kMaximumRows = 1152;  // m is the greatest score up to here

// rows: of the token, window and compressed ones.
constexpr bool weighs_by_power(bool selects, std::int32_t rows) {
  return !selects && rows > kMaximumRows;
}

}  // namespace dsv4rt
