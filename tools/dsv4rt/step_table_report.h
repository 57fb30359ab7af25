// dsv4rt bench --step-table: a table of step times for `dsv4rt replay --execute model`.
#pragma once

#include <string>

#include "dsv4rt/engine.h"
#include "dsv4rt/status.h"
#include "tools/lib/step_table_bench.h"

namespace dsv4rt::cli {

// Measures the grid with an engine of these options, whose limits are replaced, and writes the table to `path`.
// `revision` names the build that was measured; empty: its commit. Ctrl-C ends it with the points so far printed and no
// table written: kFailedPrecondition.
Status write_step_table(EngineOptions options, const StepTableGrid& grid, const std::string& revision,
                        const std::string& path);

}  // namespace dsv4rt::cli
