// Where output goes: results to stdout, progress and logs to stderr, reports as JSON where asked.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "dsv4rt/status.h"

namespace dsv4rt::cli {

// Writes `report` to `path`, or to stdout for "-". kBadInput/kResourceExhausted naming the path.
Status write_json_report(const nlohmann::ordered_json& report, const std::string& path);

// "model: 300 of 704 tokens" on stderr: rewritten in place on a terminal, a line per tenth elsewhere.
class ProgressLine {
 public:
  ProgressLine(std::string what, std::string unit);
  void update(std::int64_t done, std::int64_t total);

 private:
  std::string what_;
  std::string unit_;
  bool terminal_;
  std::int64_t last_tenth_ = -1;
};

}  // namespace dsv4rt::cli
