// Prefix hits of a cache that knows the future: what no policy can do much better than.
#pragma once

#include <cstdint>
#include <vector>

#include "replay/block_sequence.h"
#include "replay/lru_curve.h"

namespace dsv4rt::replay {

// The hit of a request is as LruCurve says. After a request, of all blocks that the cache held and those of the
// request, the `capacity` blocks stay that are asked for again soonest (Belady 1966, with the choice not to keep a new
// block). Where a log's ids are chained, as prefix ids are, no policy hits more blocks; in tokens it is the bound but
// for partial blocks, which count as whole ones. O(n log n); about 17 bytes a block asked for besides the sequence.
HitCounters belady_hits(const BlockSequence& sequence, std::int64_t capacity);

}  // namespace dsv4rt::replay
