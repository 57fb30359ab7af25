// Refusals of single records of a log: messages that name file, line, field, value and what is accepted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "dsv4rt/status.h"

namespace dsv4rt::replay {

// Why a record was refused; skipped records are counted by it.
enum class BadReason : std::uint8_t {
  kSyntax,        // not the JSON or CSV it should be
  kTooLong,       // beyond the bound on a line or record
  kNulByte,       // a NUL byte in text
  kMissingField,  // a field that every record needs
  kWrongType,     // text where a number belongs, or the like
  kOutOfRange,    // negative, huge, not finite
  kBlockIds,      // block ids and prompt length do not fit each other: often a wrong block size
  kTimeOrder,     // earlier than the record before, where the format promises order
  kDuplicate,     // an id that may occur once
  kUnsupported,   // understood, but not offered
};
inline constexpr int kBadReasonCount = 10;
// "syntax", "too_long", ...: for reports.
std::string_view bad_reason_name(BadReason reason) noexcept;

// Knows where in the log reading is.
class RecordErrors {
 public:
  explicit RecordErrors(std::string log_name) : log_name_(std::move(log_name)) {}

  void set_line(std::int64_t line) noexcept { line_ = line; }
  [[nodiscard]] std::int64_t line() const noexcept { return line_; }
  [[nodiscard]] const std::string& log_name() const noexcept { return log_name_; }
  // "log.jsonl line 17"
  [[nodiscard]] std::string place() const;

  // kBadInput: "<place>: <what>".
  [[nodiscard]] Status refuse(BadReason reason, const std::string& what);
  // kBadInput: "<place>: <field>: <value>; accepted: <accepted>".
  [[nodiscard]] Status refuse_field(BadReason reason, std::string_view field, std::string_view value,
                                    std::string_view accepted);
  // Takes over a failure found by another parser, with its message.
  [[nodiscard]] Status adopt(BadReason reason, Status status);

  // The reason of the latest refusal.
  [[nodiscard]] BadReason last_reason() const noexcept { return last_reason_; }

 private:
  std::string log_name_;
  std::int64_t line_ = 0;
  BadReason last_reason_ = BadReason::kSyntax;
};

}  // namespace dsv4rt::replay
