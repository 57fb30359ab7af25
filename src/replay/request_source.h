// Where recorded requests come from, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dsv4rt/status.h"
#include "replay/line_reader.h"
#include "replay/record_errors.h"
#include "replay/request.h"

namespace dsv4rt::replay {

// Between which requests equal block ids mean equal tokens.
enum class PrefixIdentity : std::uint8_t {
  kNone,     // the log does not say what prompts share: hit rates cannot be known
  kSession,  // within a session; ids of different sessions have been made distinct
  kGlobal,   // within the log
};
// "none", "session", "global".
std::string_view prefix_identity_name(PrefixIdentity identity) noexcept;

// What the length of a later turn of a session counts.
enum class SessionTurns : std::uint8_t {
  kAuto,   // the dialect's rule: by the turn's first block id, see docs/replay.md
  kFull,   // the whole prompt
  kDelta,  // only what the turn adds to earlier prompts and answers
};

struct SourceInfo {
  std::string format;  // "mooncake", "azure", ...
  PrefixIdentity identity = PrefixIdentity::kNone;
  std::int32_t block_tokens = 0;   // in a block; 0 without identity
  bool arrival_times = true;       // false: the log has none, and every arrival_ms is 0
  bool arrivals_ordered = true;    // the format promises it and the source checks it
  bool lengths_estimated = false;  // tokens were estimated from words
};

// What has been read so far.
struct SourceProgress {
  std::int64_t requests = 0;
  std::int64_t input_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t lines = 0;  // line of the latest record
  std::uint64_t bytes = 0;
  // The smallest difference between successive arrival times that differ, 0 while none do; and how many requests arrive
  // at the time of the one before. A large step with many shared times is a coarse clock: replay such a log with
  // jitter.
  double arrival_step_ms = 0;
  std::int64_t shared_arrivals = 0;
  std::map<BadReason, std::int64_t> skipped;  // records left out under skip_bad
  [[nodiscard]] std::int64_t skipped_records() const;
};

class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // The next request in the order of the log; nothing at its end. Failures: kBadInput naming file, line, field, value
  // and what is accepted; kResourceExhausted. After a failure the source only fails.
  virtual Result<std::optional<Request>> next() = 0;
  // Known from the start.
  [[nodiscard]] virtual const SourceInfo& info() const = 0;
  [[nodiscard]] virtual const SourceProgress& progress() const = 0;
  // SHA-256 of the log in hex; empty before all of it has been read.
  [[nodiscard]] virtual std::string sha256_hex() const = 0;
};

struct RequestLogOptions {
  // Tokens of a block id. 0: what the log says, or what its format has (Mooncake and AIPerf 512, Bailian 16; 256 where
  // ids are made from token ids). A log that says otherwise is refused.
  std::int32_t block_tokens = 0;
  std::size_t max_line_bytes = kMaxLineBytes;
  bool skip_bad = false;  // leave out refused records and count them, instead of failing at the first
  SessionTurns session_turns = SessionTurns::kAuto;
  std::string tokenizer;  // not offered: any value is kUnsupported
};

// Opens a log of any known format, told by its content; "-" is standard input. Reads the first record. Errors:
// kNotFound, kUnsupported (compressed, tokenizer), kBadInput (empty, unknown format, a bad header), kInvalidArgument.
Result<std::unique_ptr<RequestSource>> open_request_log(const std::string& path, const RequestLogOptions& options);

}  // namespace dsv4rt::replay
