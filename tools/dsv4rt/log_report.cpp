#include "log_report.h"

#include <filesystem>
#include <iostream>
#include <system_error>

#include <spdlog/spdlog.h>

#include "base/message_text.h"
#include "base/try.h"
#include "text_table.h"

namespace dsv4rt::cli {

void LogFlags::add_to(CLI::App& command) {
  command.add_option("log", path, "Request log of any known format, or - for standard input")->required();
  command
      .add_option("--block-tokens", block_tokens, "Tokens of a block id, where the log does not say; 0: the format's")
      ->capture_default_str();
  command.add_option("--limit", limit, "Read only so many requests")->check(CLI::NonNegativeNumber);
  command.add_flag("--skip-bad", skip_bad, "Leave out records that are refused, and count them");
  command.add_option("--session-turns", session_turns, "What a later turn's length counts: auto, full or delta")
      ->check(CLI::IsMember({"auto", "full", "delta"}))
      ->capture_default_str();
  command.add_option("--tokenizer", tokenizer, "Not offered: lengths of text are estimated from words");
}

Result<std::unique_ptr<replay::RequestSource>> open_log(const LogFlags& flags) {
  replay::RequestLogOptions options;
  options.block_tokens = flags.block_tokens;
  options.skip_bad = flags.skip_bad;
  options.tokenizer = flags.tokenizer;
  if (flags.session_turns == "full") options.session_turns = replay::SessionTurns::kFull;
  if (flags.session_turns == "delta") options.session_turns = replay::SessionTurns::kDelta;
  auto source = replay::open_request_log(flags.path, options);
  if (source && (*source)->info().lengths_estimated) {
    spdlog::warn("{}: lengths are estimated, 4 tokens for every 3 words", flags.path);
  }
  return source;
}

std::int64_t log_bytes(const LogFlags& flags) {
  std::error_code error;
  if (flags.path == "-" || !std::filesystem::is_regular_file(flags.path, error)) return 0;
  const auto bytes = std::filesystem::file_size(flags.path, error);
  return error ? 0 : static_cast<std::int64_t>(bytes);
}

nlohmann::ordered_json log_json(const LogFlags& flags, const replay::RequestSource& source) {
  const replay::SourceInfo& info = source.info();
  const replay::SourceProgress& progress = source.progress();
  nlohmann::ordered_json json{{"path", flags.path}};
  // Of a log that was not read to its end, no digest is known.
  json["sha256"] = source.sha256_hex().empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(source.sha256_hex());
  json["format"] = info.format;
  json["prefix_identity"] = replay::prefix_identity_name(info.identity);
  if (info.identity != replay::PrefixIdentity::kNone) json["block_tokens"] = info.block_tokens;
  json["lengths_estimated"] = info.lengths_estimated;
  json["arrival_times"] = info.arrival_times;
  json["arrival_step_ms"] = progress.arrival_step_ms;
  json["shared_arrivals"] = progress.shared_arrivals;
  json["requests"] = progress.requests;
  json["input_tokens"] = progress.input_tokens;
  json["output_tokens"] = progress.output_tokens;
  json["skipped"] = nlohmann::ordered_json::object();
  for (const auto& [reason, count] : progress.skipped) json["skipped"][std::string(bad_reason_name(reason))] = count;
  return json;
}

void print_log(const LogFlags& flags, const replay::RequestSource& source) {
  const replay::SourceInfo& info = source.info();
  const replay::SourceProgress& progress = source.progress();
  std::cout << "log: " << shown(flags.path) << ", format " << info.format << "\n"
            << "requests: " << progress.requests << ", input tokens " << progress.input_tokens << ", output tokens "
            << progress.output_tokens << (info.lengths_estimated ? " (estimated from words)" : "") << "\n"
            << "prefix identity: " << replay::prefix_identity_name(info.identity);
  if (info.identity != replay::PrefixIdentity::kNone) std::cout << ", blocks of " << info.block_tokens << " tokens";
  std::cout << "\narrivals: ";
  if (!info.arrival_times) {
    std::cout << "no times in the log\n";
  } else if (progress.arrival_step_ms == 0) {
    std::cout << "one time only\n";
  } else {
    std::cout << "smallest step " << fixed(progress.arrival_step_ms, 3) << " ms, " << progress.shared_arrivals
              << " requests at the time of the one before\n";
  }
  if (progress.skipped.empty()) return;
  std::cout << "skipped:";
  for (const auto& [reason, count] : progress.skipped) std::cout << " " << bad_reason_name(reason) << " " << count;
  std::cout << "\n";
}

void add_log(Provenance& provenance, const LogFlags& flags, const replay::RequestSource& source) {
  const std::string digest = source.sha256_hex();
  // Standard input has no size but what was read of it.
  const auto size = static_cast<std::uint64_t>(log_bytes(flags));
  const std::uint64_t bytes = size > 0 ? size : source.progress().bytes;
  provenance.add_digested(flags.path, digest.empty() ? std::nullopt : std::optional(digest), bytes);
}

}  // namespace dsv4rt::cli
