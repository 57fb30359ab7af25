// Where a report comes from: the program, its build, the machine, the arguments and the files that were read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "dsv4rt/engine.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cli {

// The commit of the sources that this program was built from, "unknown" where they were none of git's.
std::string build_commit();
// The processor's name as it tells it.
std::string processor_name();
// The kernel module's version; empty without an NVIDIA driver.
std::string nvidia_driver_version();

// The object `provenance` of every JSON report. Inputs are digested when they are added, before the work that reads
// them: a file that cannot be read fails early, and no result is lost to one that has gone meanwhile.
class Provenance {
 public:
  // The SHA-256 of a whole file. Errors: those of InputFile.
  Status add_file(const std::filesystem::path& path);
  // A checkpoint's directory: the SHA-256 of config, index and headers, since weights may be hundreds of GB. Each file
  // is taken by name as: its name, a NUL, its bytes in decimal, a newline, then config.json first and the index next,
  // whole, and of every safetensors file the length field and the header. Errors: those of Checkpoint and InputFile.
  Status add_checkpoint(const std::filesystem::path& directory);
  // What was digested while it was read; null for what is not known.
  void add_digested(const std::string& path, std::optional<std::string> sha256, std::optional<std::uint64_t> bytes);
  // The device that an engine of these options computes on; none with the CPU backend.
  void set_device(const EngineOptions& options);

  [[nodiscard]] nlohmann::ordered_json json() const;

 private:
  nlohmann::ordered_json inputs_ = nlohmann::ordered_json::array();
  nlohmann::ordered_json gpu_;  // null: nothing was computed on one
};

}  // namespace dsv4rt::cli
