// What dsv4rt bench measures, as people write it on the command line.
#pragma once

#include <string>
#include <vector>

#include "dsv4rt/status.h"
#include "tools/lib/prefill_bench.h"
#include "tools/lib/step_bench.h"

namespace dsv4rt::cli {

// "32x8192": sequences times cached tokens of each; "32x1024..8192": of sequences of several lengths (context_of()).
// kInvalidArgument naming --whole-step and the text.
Result<std::vector<StepShape>> parse_step_shapes(const std::vector<std::string>& texts);

// "2048", or "2048@32768": tokens of a prompt after so many cached ones. kInvalidArgument naming --whole-prefill and
// the text.
Result<std::vector<PrefillShape>> parse_prefill_shapes(const std::vector<std::string>& texts);

}  // namespace dsv4rt::cli
