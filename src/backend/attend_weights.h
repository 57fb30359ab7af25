// What the weights of attention are relative to, on every backend.
//
// A weight is a power of two, 2^x, rounded to BF16 before it multiplies values, with x = (s - m) * log2(e) of the row's
// score s. m cancels but for this rounding, so which m it is decides bytes.
//
// Of selected rows, and of few others, m is the greatest score of the token's window rows, which come first; there is
// one at least, the token's own. So the rounding of a weight depends on its own score and on the window's: rows can be
// weighed, and multiplied, as they come, before the scores of later ones are known.
//
// Other rows may weigh more than one. Up to x = 60 that is left alone: sums of a thousand weights of 2^60 times values
// of 2^50 still are within FP32, weights within BF16, and the window's greatest row weighs one, so that sums, too, are
// at least one. Hence nothing is rescaled. Of a head in which some row has a greater x all weights are relative to
// 2^(64 j):
//   j(x) = ceil((x - 60) / 64) where x > 60, otherwise 0;    j = the greatest j(x) of the rows
//   weight = BF16(2^(x - 64 j(x))) * 2^(64 (j(x) - j))
// A power of two scales what has been rounded, and sums of it, exactly: here, too, the rounding of a weight is its own
// row's affair. The greatest row has x - 64 j > -4, so that sums are at least 2^-4. The sink's weight is exp(sink - m)
// relative to the same 2^(64 j). Weights less than 2^-126 may be zero.
//
// A token with more rows that are not selected takes a multiple of ln 2 close to its greatest score for m: weights
// relative to different powers of two round alike, so that its rows can be weighed in parts and the parts' sums be
// scaled exactly.
#pragma once

#include <cstdint>

namespace dsv4rt {

inline constexpr std::int32_t kMaximumRows = 1152;  // m is the window's greatest score up to here

inline constexpr float kUnshiftedExponent = 60.0f;  // greatest x of a weight that is not relative to a power of two
inline constexpr float kExponentShift = 64.0f;      // the powers are multiples of this

// rows: of the token, window and compressed ones.
constexpr bool weighs_by_power(bool selects, std::int32_t rows) {
  return !selects && rows > kMaximumRows;
}

}  // namespace dsv4rt
