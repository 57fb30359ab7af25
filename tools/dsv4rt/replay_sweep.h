// dsv4rt replay --execute model --sweep-pool: the whole replay once for every size of the pool.
#pragma once

#include <functional>

#include "dsv4rt/status.h"
#include "replay_model.h"

namespace dsv4rt::cli {

// Serves the log with these flags, whose sweep_pool is empty.
using ServeLog = std::function<Result<ServedLog>(const ReplayModelFlags&)>;

// A line for each of flags.sweep_pool, ascending; the report's `run` is that of the largest. Files of single runs and
// standard input, which cannot be read twice, are refused.
Status replay_sweep(const LogFlags& log, const ReplayModelFlags& flags, const ReplayFiles& files,
                    const ServeLog& serve);

}  // namespace dsv4rt::cli
