// The objects of a JSON document that is not one object a line: elements of a top-level array, or objects that follow
// each other, over any number of lines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "replay/log_bytes.h"
#include "replay/record_errors.h"
#include "replay/record_reader.h"

namespace dsv4rt::replay {

inline constexpr std::size_t kMaxElementBytes = std::size_t{64} << 20;

// Finds where each object ends from brackets and strings; whether it is valid JSON inside is for its parser. An object
// beyond the bound is read past without being held. Errors: kBadInput naming the line where the object begins. What
// stands between objects is not recovered from: can_continue() is false after such a failure.
class JsonElementReader : public RecordReader {
 public:
  // Both must outlive the reader, which keeps the line of `errors` at the current object's first line (1-based).
  JsonElementReader(LogBytes& bytes, RecordErrors& errors, std::size_t max_element_bytes = kMaxElementBytes)
      : bytes_(bytes), errors_(errors), max_element_bytes_(max_element_bytes) {}

  Result<std::optional<std::string_view>> next() override;
  [[nodiscard]] bool can_continue() const noexcept override { return can_continue_; }

 private:
  // The next byte that is no white space, 0 at the end; not skipped.
  Result<char> next_significant();
  // Whether an object follows; leaves the position at its brace.
  Result<bool> find_object();
  Status read_object();
  Status stop(const std::string& what);

  LogBytes& bytes_;
  RecordErrors& errors_;
  std::size_t max_element_bytes_;
  std::int64_t line_ = 1;
  bool started_ = false;
  bool in_array_ = false;
  bool array_ended_ = false;
  bool any_element_ = false;
  bool can_continue_ = true;
  std::string element_;
};

}  // namespace dsv4rt::replay
