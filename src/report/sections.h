// The sections of a replay's page. Each takes the whole document ("doc") or the run in it ("run": summary_json of
// src/replay) and gives HTML; what the document does not have is left out.
#pragma once

#include <string>

#include "report/document.h"

namespace dsv4rt::report {

// served_sections.cpp: of a log that a scheduler served.
std::string served_headline(const Field& run);
std::string latency_section(const Field& run);
std::string slowest_section(const Field& run);
std::string memory_section(const Field& run);

// load_sections.cpp: over time.
std::string load_section(const Field& run);
std::string cache_section(const Field& run);

// capacity_sections.cpp: against the capacity of the cache.
std::string study_headline(const Field& doc);
std::string study_capacity_section(const Field& doc);
std::string sweep_section(const Field& sweep);

// run_sections.cpp: what was run, and what the numbers mean.
std::string run_section(const Field& doc);
std::string meaning_section(const Field& doc);

}  // namespace dsv4rt::report
