// What every command says about the request log that it read.
#pragma once

#include <string>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "provenance.h"
#include "replay/request_source.h"

namespace dsv4rt::cli {

// Flags of reading a log.
struct LogFlags {
  std::string path;
  std::int32_t block_tokens = 0;
  std::int64_t limit = -1;
  bool skip_bad = false;
  std::string session_turns = "auto";
  std::string tokenizer;

  void add_to(CLI::App& command);
};

// Opens the log; warns on stderr where its lengths are estimates. Errors as open_request_log; kInvalidArgument.
Result<std::unique_ptr<replay::RequestSource>> open_log(const LogFlags& flags);

// Bytes of the log, 0 where that is not known (standard input, a pipe).
std::int64_t log_bytes(const LogFlags& flags);

// Path, digest, format, what was read and what was skipped.
nlohmann::ordered_json log_json(const LogFlags& flags, const replay::RequestSource& source);
// The same for people.
void print_log(const LogFlags& flags, const replay::RequestSource& source);

// Adds the log as an input that was digested while it was read.
void add_log(Provenance& provenance, const LogFlags& flags, const replay::RequestSource& source);

}  // namespace dsv4rt::cli
