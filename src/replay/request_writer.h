// One JSON line for every request that ended, in the order of their ends: {"metadata": {...}, "metrics": {name:
// {"value", "unit"}}, "error": null or {"code", "message"}}, with the names of AIPerf where it has one. A metric that
// a request did not come to is not there. Lines with "outcome" other than "finished" have an error.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "dsv4rt/status.h"
#include "replay/request_record.h"
#include "replay/text_output.h"

namespace dsv4rt::replay {

// "finished", "rejected", "aborted".
const char* outcome_name(RequestOutcome outcome) noexcept;
// "none", "queue full", "too long", "no tokens".
const char* reject_reason_name(RejectReason reason) noexcept;

// The line, without its end.
std::string request_line(const RequestRecord& record);

class RequestWriter {
 public:
  static Result<RequestWriter> create(const std::filesystem::path& path);
  Status write(const RequestRecord& record) { return output_.write(request_line(record) + "\n"); }
  Status commit() { return output_.commit(); }

 private:
  explicit RequestWriter(TextOutput output) : output_(std::move(output)) {}
  TextOutput output_;
};

}  // namespace dsv4rt::replay
