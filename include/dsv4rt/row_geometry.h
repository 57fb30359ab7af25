// What a row holds, whatever its format.
#pragma once

namespace dsv4rt {

// Row geometry that the cache formats and kernels are built for; a config that differs is refused.
inline constexpr int kHeadDim = 512;  // c: values of one query head and of one KV row
inline constexpr int kRopeDim = 64;   // trailing values that carry the rotary embedding
inline constexpr int kNopeDim = kHeadDim - kRopeDim;
inline constexpr int kIndexHeadDim = 128;  // values of one indexer query head and of one index key

}  // namespace dsv4rt
