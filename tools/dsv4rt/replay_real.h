// dsv4rt replay --execute real: a log served by a scheduler with an engine that computes every step.
#pragma once

#include <cstdint>
#include <vector>

#include "dsv4rt/status.h"
#include "engine_flags.h"
#include "log_report.h"
#include "replay_model.h"

namespace dsv4rt::cli {

struct ReplayRealFlags {
  EngineFlags engine;
  bool digests = true;
  std::vector<std::int32_t> devices;

  void add_to(CLI::App& command);
};

// Prints the table and writes the files.
Status replay_real(const LogFlags& log, const ReplayModelFlags& serving, const ReplayRealFlags& flags,
                   const ReplayFiles& files);

}  // namespace dsv4rt::cli
