// Flags and output of stage times, for the commands that run layers.
#pragma once

#include <memory>
#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "dsv4rt/engine.h"
#include "tools/lib/stage_timer.h"

namespace dsv4rt::cli {

class StageReport {
 public:
  void add_to(CLI::App& command);
  // Whether a flag asks for stage times.
  [[nodiscard]] bool wanted() const noexcept { return stages_ || !chrome_trace_.empty(); }
  // A timer of the engine, which outlives it, if any flag asks for one; otherwise null.
  [[nodiscard]] Result<std::unique_ptr<StageTimer>> start(Engine& engine) const;
  // Adds "stages" to the report, prints a table where `print` says so, and writes the Chrome trace.
  Status finish(StageTimer* timer, nlohmann::ordered_json& report, bool print) const;

 private:
  bool stages_ = false;
  std::string chrome_trace_;
};

}  // namespace dsv4rt::cli
