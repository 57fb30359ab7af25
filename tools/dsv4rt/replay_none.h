// dsv4rt replay --execute none: what a prefix cache would have served of a log.
#pragma once

#include <string>
#include <vector>

#include "dsv4rt/status.h"
#include "log_report.h"

namespace dsv4rt::cli {

struct ReplayNoneFlags {
  std::string pool_tokens;              // one capacity
  std::vector<std::string> sweep_pool;  // or several
  std::string policy = "lru";
};

// Prints the table, or writes the report to `json` ("" for none, "-" for standard output instead of the table).
Status replay_none(const LogFlags& log, const ReplayNoneFlags& flags, const std::string& json);

}  // namespace dsv4rt::cli
