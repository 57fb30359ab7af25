// The files that tell what a replay found: the report as JSON, and the page that is made of it.
#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "dsv4rt/status.h"
#include "provenance.h"

namespace dsv4rt::cli {

struct ReplayFiles {
  std::string json;  // "" for none, "-" for standard output instead of the table
  std::string page;  // HTML; "" for none

  void add_to(CLI::App& command);
  [[nodiscard]] bool wanted() const noexcept { return !json.empty() || !page.empty(); }
  [[nodiscard]] bool table_wanted() const noexcept { return json != "-"; }
};

// The head of every report: what was run, by which program.
nlohmann::ordered_json replay_report_head(const std::string& execute, const Provenance& provenance);

// Writes what is wanted of a complete report.
Status write_replay_files(const nlohmann::ordered_json& report, const ReplayFiles& files);

}  // namespace dsv4rt::cli
