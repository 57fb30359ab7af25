#include "replay/record_errors.h"

#include "base/message_text.h"

namespace dsv4rt::replay {

std::string_view bad_reason_name(BadReason reason) noexcept {
  switch (reason) {
    case BadReason::kSyntax:
      return "syntax";
    case BadReason::kTooLong:
      return "too_long";
    case BadReason::kNulByte:
      return "nul_byte";
    case BadReason::kMissingField:
      return "missing_field";
    case BadReason::kWrongType:
      return "wrong_type";
    case BadReason::kOutOfRange:
      return "out_of_range";
    case BadReason::kBlockIds:
      return "block_ids";
    case BadReason::kTimeOrder:
      return "time_order";
    case BadReason::kDuplicate:
      return "duplicate";
    case BadReason::kUnsupported:
      return "unsupported";
  }
  return "unknown";
}

std::string RecordErrors::place() const {
  return log_name_ + " line " + std::to_string(line_);
}

Status RecordErrors::refuse(BadReason reason, const std::string& what) {
  last_reason_ = reason;
  return {StatusCode::kBadInput, shown(place()) + ": " + what};
}

Status RecordErrors::refuse_field(BadReason reason, std::string_view field, std::string_view value,
                                  std::string_view accepted) {
  return refuse(reason, printable(field) + ": " + std::string(value) + "; accepted: " + std::string(accepted));
}

Status RecordErrors::adopt(BadReason reason, Status status) {
  last_reason_ = reason;
  return status;
}

}  // namespace dsv4rt::replay
