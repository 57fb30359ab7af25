#include "replay/line_reader.h"

namespace dsv4rt::replay {

Result<std::optional<std::string_view>> LineReader::next() {
  line_.clear();
  bool ended = false;
  bool too_long = false;
  bool any = false;
  while (!ended) {
    auto piece = bytes_.peek(1);
    if (!piece) {
      can_continue_ = false;
      return piece.status();
    }
    if (piece->empty()) break;
    any = true;
    const std::size_t newline = piece->find('\n');
    ended = newline != std::string_view::npos;
    const std::string_view text = piece->substr(0, newline);
    // One byte more than the bound is kept: it may be the CR of a line that just fits.
    too_long = too_long || line_.size() + text.size() > max_line_bytes_ + 1;
    if (too_long) {
      line_.clear();
      line_.shrink_to_fit();
    } else {
      line_ += text;
    }
    bytes_.skip(text.size() + (ended ? 1 : 0));
  }
  if (!any) return std::optional<std::string_view>();
  errors_.set_line(++line_number_);
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  if (too_long || line_.size() > max_line_bytes_) {
    return errors_.refuse(BadReason::kTooLong, "the line is too long; accepted: lines of at most " +
                                                   std::to_string(max_line_bytes_) + " bytes");
  }
  if (const std::size_t nul = line_.find('\0'); nul != std::string::npos) {
    return errors_.refuse(BadReason::kNulByte,
                          "NUL byte at byte " + std::to_string(nul) + " of the line; accepted: text without NUL bytes");
  }
  return std::optional<std::string_view>(line_);
}

}  // namespace dsv4rt::replay
