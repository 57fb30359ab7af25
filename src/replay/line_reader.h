// The lines of a log, one at a time, each of bounded length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "replay/log_bytes.h"
#include "replay/record_errors.h"
#include "replay/record_reader.h"

namespace dsv4rt::replay {

inline constexpr std::size_t kMaxLineBytes = std::size_t{16} << 20;

// Lines end with LF or CRLF; the last one may lack its end. Records exclude it. A line beyond the bound is read past
// without being held. Errors: kBadInput (too long, NUL byte) naming the line, after which reading can go on.
class LineReader : public RecordReader {
 public:
  // Both must outlive the reader, which keeps the line of `errors` up to date (1-based).
  LineReader(LogBytes& bytes, RecordErrors& errors, std::size_t max_line_bytes = kMaxLineBytes)
      : bytes_(bytes), errors_(errors), max_line_bytes_(max_line_bytes) {}

  Result<std::optional<std::string_view>> next() override;
  [[nodiscard]] bool can_continue() const noexcept override { return can_continue_; }

 private:
  LogBytes& bytes_;
  RecordErrors& errors_;
  std::size_t max_line_bytes_;
  std::int64_t line_number_ = 0;
  std::string line_;
  bool can_continue_ = true;
};

}  // namespace dsv4rt::replay
