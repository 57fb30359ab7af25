// dsv4rt replay --execute none: what a prefix cache would have served of a log.
#pragma once

#include <string>
#include <vector>

#include "dsv4rt/status.h"
#include "log_report.h"
#include "replay_files.h"

namespace dsv4rt::cli {

struct ReplayNoneFlags {
  std::string pool_tokens;              // one capacity
  std::vector<std::string> sweep_pool;  // or several
  std::string policy = "lru";
};

// Prints the table and writes the files.
Status replay_none(const LogFlags& log, const ReplayNoneFlags& flags, const ReplayFiles& files);

}  // namespace dsv4rt::cli
