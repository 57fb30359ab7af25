// Where results go: standard output, whose every byte is checked, and the files that flags name.
#pragma once

#include <array>
#include <streambuf>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "checkpoint/output_file.h"
#include "dsv4rt/status.h"
#include "provenance.h"

namespace dsv4rt::cli {

// std::cout while it lives: the first failure of a write is remembered, whoever wrote.
class StandardOutput : public std::streambuf {
 public:
  StandardOutput();
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;
  ~StandardOutput() override;

  // Everything is written, or why not (kFaulted, also for a full disk).
  [[nodiscard]] Status finish();

 protected:
  int_type overflow(int_type c) override;
  int sync() override;

 private:
  std::array<char, 1 << 16> buffer_{};
  std::streambuf* before_;
  Status failure_;
};

// The flags of a command that name files to be written. They are looked at before work begins; --force, which this adds
// to the command, allows files that exist to be replaced.
class Outputs {
 public:
  // `names` are options of the command, which has them already. --json, --out and out may be "-".
  void add_to(CLI::App& command, std::vector<std::string> names);
  // kInvalidArgument naming the flag: for a file that exists (without --force), what is no regular file, a symbolic
  // link, one path or standard output given twice; kNotFound, kBadInput where the file could not be made.
  [[nodiscard]] Status check() const;
  [[nodiscard]] Existing existing() const noexcept { return force_ ? Existing::kReplace : Existing::kRefuse; }

 private:
  std::vector<const CLI::Option*> options_;
  bool force_ = false;
};

// Writes `report`, with its provenance at the end unless it has that already, to `path`, or to stdout for "-". Errors:
// those of OutputFile, naming the path.
Status write_json_report(nlohmann::ordered_json report, const Provenance& provenance, const std::string& path,
                         Existing existing = Existing::kReplace);

// Signals that end the process remove its unfinished files first; SIGPIPE and SIGXFSZ become errors of the write that
// they were sent for. Standard descriptors that are closed are made to fail instead of becoming somebody's file.
void prepare_process();

}  // namespace dsv4rt::cli
