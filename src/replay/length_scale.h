// Shorter requests out of a log's: for machines whose context or memory the log's lengths do not fit.
#pragma once

#include "dsv4rt/status.h"
#include "replay/arrivals.h"
#include "replay/request.h"

namespace dsv4rt::replay {

// The request with its lengths times `factor`. Block ids stay, and a block has round(block_tokens * factor) tokens, at
// least one; the lengths of a request with block ids are scaled by exactly what that does to its blocks, so that
// prompts which share k blocks share k scaled ones. What was not empty keeps a token.
Request scaled_lengths(Request request, double factor);

// A supply of such requests. kInvalidArgument for a factor that is not in (0, 1].
Result<RequestSupply> scaled_supply(RequestSupply supply, double factor);

}  // namespace dsv4rt::replay
