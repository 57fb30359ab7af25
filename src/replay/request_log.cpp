// A log of any format as a RequestSource: finds reader and parser, orders, numbers and counts what they give.
#include <cstdlib>
#include <deque>
#include <utility>
#include <vector>

#include "base/try.h"
#include "replay/arrival_order.h"
#include "replay/block_identity.h"
#include "replay/json_element_reader.h"
#include "replay/json_fields.h"
#include "replay/line_reader.h"
#include "replay/log_bytes.h"
#include "replay/log_format.h"
#include "replay/record_parser.h"
#include "replay/request_source.h"

namespace dsv4rt::replay {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kGzipMagic = "\x1f\x8b";
constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";

bool blank(std::string_view record) {
  return record.find_first_not_of(" \t") == std::string_view::npos;
}

class RequestLog : public RequestSource {
 public:
  RequestLog(LogBytes bytes, const RequestLogOptions& options)
      : bytes_(std::move(bytes)), errors_(bytes_.name()), options_(options) {}

  // Finds the format and reads up to the first request.
  Status open();

  Result<std::optional<Request>> next() override;
  [[nodiscard]] const SourceInfo& info() const override { return parser_->info(); }
  [[nodiscard]] const SourceProgress& progress() const override { return progress_; }
  [[nodiscard]] std::string sha256_hex() const override { return bytes_.at_end() ? bytes_.sha256_hex() : ""; }

 private:
  // Reads records until a request waits or the log ends.
  Status fill();
  Status read_record(std::string_view record);
  Status accept(ParsedRequest& parsed);
  void count_step(Ticks step);

  LogBytes bytes_;
  RecordErrors errors_;
  RequestLogOptions options_;
  std::unique_ptr<RecordReader> reader_;
  std::unique_ptr<RecordParser> parser_;
  SourceProgress progress_;
  std::vector<ParsedRequest> parsed_;
  std::deque<Request> waiting_;
  Status failure_;
  bool ended_ = false;
  ArrivalOrder arrivals_;
};

Status RequestLog::open() {
  DSV4RT_ASSIGN_OR_RETURN(std::string_view head, bytes_.peek(LogBytes::kBufferBytes));
  if (head.starts_with(kByteOrderMark)) {
    bytes_.skip(kByteOrderMark.size());
    head.remove_prefix(kByteOrderMark.size());
  }
  if (head.empty()) return {StatusCode::kBadInput, bytes_.name() + ": empty; a log of requests is accepted"};
  if (head.starts_with(kGzipMagic) || head.starts_with(kZstdMagic)) {
    return {StatusCode::kUnsupported,
            bytes_.name() + ": compressed; decompress it first, for example with zcat into -"};
  }
  if (log_shape(head) == LogShape::kElements) {
    reader_ = std::make_unique<JsonElementReader>(bytes_, errors_);
  } else {
    reader_ = std::make_unique<LineReader>(bytes_, errors_, options_.max_line_bytes);
  }
  DSV4RT_RETURN_IF_ERROR(fill());
  if (!parser_) return {StatusCode::kBadInput, bytes_.name() + ": no record; a log of requests is accepted"};
  return {};
}

void RequestLog::count_step(Ticks step) {
  if (step == 0) {
    ++progress_.shared_arrivals;
  } else if (progress_.arrival_step_ms == 0 || ticks_to_ms(step) < progress_.arrival_step_ms) {
    progress_.arrival_step_ms = ticks_to_ms(step);
  }
}

Status RequestLog::accept(ParsedRequest& parsed) {
  Request& request = parsed.request;
  if (parsed.arrival) {
    DSV4RT_RETURN_IF_ERROR(arrivals_.check(*parsed.arrival, parser_->info().arrivals_ordered, errors_));
    if (const auto since = arrivals_.add(*parsed.arrival)) count_step(std::abs(*since));
    request.arrival_ms = arrivals_.ms_after_first(*parsed.arrival);
  } else if (!parser_->info().arrival_times) {
    request.arrival_ms = 0;
  }
  request.line = errors_.line();
  if (request.id.empty()) request.id = "line " + std::to_string(request.line);
  waiting_.push_back(std::move(request));
  return {};
}

Status RequestLog::read_record(std::string_view record) {
  if (!parser_) {
    // What the format is cannot be skipped over.
    auto parser = parser_for(record, options_, arrivals_, errors_);
    if (!parser) {
      failure_ = parser.status();
      return failure_;
    }
    parser_ = std::move(*parser);
  }
  parsed_.clear();
  DSV4RT_RETURN_IF_ERROR(parser_->parse(record, parsed_));
  for (ParsedRequest& parsed : parsed_) DSV4RT_RETURN_IF_ERROR(accept(parsed));
  return {};
}

Status RequestLog::fill() {
  while (waiting_.empty() && !ended_) {
    if (!failure_.ok()) return failure_;
    const auto record = reader_->next();
    Status status = record.status();
    if (status.ok()) {
      if (!*record) {
        ended_ = true;
        break;
      }
      if (blank(**record)) continue;
      status = read_record(**record);
    } else if (!reader_->can_continue()) {
      failure_ = status;
    }
    progress_.lines = errors_.line();
    progress_.bytes = bytes_.bytes_read();
    if (status.ok()) continue;
    const bool lost = parser_ && parser_->lost();
    if (!failure_.ok() || lost || !options_.skip_bad || status.code() != StatusCode::kBadInput) {
      failure_ = status;
      return failure_;
    }
    ++progress_.skipped[errors_.last_reason()];
  }
  return {};
}

Result<std::optional<Request>> RequestLog::next() {
  DSV4RT_RETURN_IF_ERROR(fill());
  if (waiting_.empty()) return std::optional<Request>();
  Request request = std::move(waiting_.front());
  waiting_.pop_front();
  request.index = progress_.requests++;
  progress_.input_tokens += request.input_tokens;
  progress_.output_tokens += request.output_tokens;
  return std::optional<Request>(std::move(request));
}

}  // namespace

std::string_view prefix_identity_name(PrefixIdentity identity) noexcept {
  switch (identity) {
    case PrefixIdentity::kNone:
      return "none";
    case PrefixIdentity::kSession:
      return "session";
    case PrefixIdentity::kGlobal:
      return "global";
  }
  return "none";
}

std::int64_t SourceProgress::skipped_records() const {
  std::int64_t records = 0;
  for (const auto& [reason, count] : skipped) records += count;
  return records;
}

Result<std::unique_ptr<RequestSource>> open_request_log(const std::string& path, const RequestLogOptions& options) {
  if (!options.tokenizer.empty()) {
    return Status{StatusCode::kUnsupported,
                  "tokenizer " + options.tokenizer +
                      ": no tokenizer library is part of this build; leave it out to estimate tokens from words, or "
                      "convert the log to token counts with the model's own tokenizer first"};
  }
  if (options.block_tokens < 0 || options.block_tokens > kMaxBlockTokens) {
    return Status{StatusCode::kInvalidArgument, "block tokens: " + std::to_string(options.block_tokens) +
                                                    "; accepted: 1 to " + std::to_string(kMaxBlockTokens) +
                                                    ", or 0 for the log's own"};
  }
  DSV4RT_ASSIGN_OR_RETURN(LogBytes bytes, LogBytes::open(path));
  auto log = std::make_unique<RequestLog>(std::move(bytes), options);
  DSV4RT_RETURN_IF_ERROR(log->open());
  return std::unique_ptr<RequestSource>(std::move(log));
}

}  // namespace dsv4rt::replay
