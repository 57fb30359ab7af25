// Logs for the tests of src/replay: shipped slices, and small ones written on the spot.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "replay/request_source.h"

namespace dsv4rt::replay::test {

inline std::string shipped_log(std::string_view name) {
  return (std::filesystem::path(DSV4RT_SOURCE_DIR) / "tests/data/logs" / name).string();
}

inline std::string write_log(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  return path.string();
}

// A log read to its end, or to its first failure.
struct ReadLog {
  Status status;
  SourceInfo info;
  SourceProgress progress;
  std::string sha256;
  std::vector<Request> requests;
};

inline ReadLog read_log(const std::string& path, const RequestLogOptions& options = {}) {
  ReadLog log;
  auto source = open_request_log(path, options);
  log.status = source.status();
  if (!source) return log;
  for (;;) {
    auto request = (*source)->next();
    log.status = request.status();
    if (!request || !*request) break;
    log.requests.push_back(std::move(**request));
  }
  log.info = (*source)->info();
  log.progress = (*source)->progress();
  log.sha256 = (*source)->sha256_hex();
  return log;
}

}  // namespace dsv4rt::replay::test
