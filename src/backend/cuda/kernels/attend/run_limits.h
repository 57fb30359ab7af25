// What the kernel of attention for runs of tokens takes (run_plan.cuh), as the host needs to know it.
#pragma once

#include <cstdint>

namespace dsv4rt::cuda {

inline constexpr std::int32_t kRunWindow = 128;  // the window, of all of whose rows a token's compressed rows follow
inline constexpr std::int32_t kRunCompressedRows = 64;  // most compressed rows of a token
inline constexpr std::int32_t kRunHeads = 64;           // heads of a block

// Steps that are served as runs, by what was measured. Decoding a run's rows takes a block as long as two further
// tokens, which a token alone does not pay. So sequences have two tokens and more on average, and none so many that
// others may be left with one; or they are so few that no block gets many of them.
inline constexpr std::int32_t kFewestRunTokens = 2;
inline constexpr std::int32_t kLongestRunShare = 2;  // tokens of the longest, in those of the average
inline constexpr std::int32_t kTokensOfStart = 3;    // a block's, for every sequence of the step

}  // namespace dsv4rt::cuda
