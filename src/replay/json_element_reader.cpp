#include "replay/json_element_reader.h"

#include "base/message_text.h"
#include "base/try.h"

namespace dsv4rt::replay {

Status JsonElementReader::stop(const std::string& what) {
  can_continue_ = false;
  errors_.set_line(line_);
  return errors_.refuse(BadReason::kSyntax, what);
}

Result<char> JsonElementReader::next_significant() {
  for (;;) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string_view piece, bytes_.peek(1));
    if (piece.empty()) return '\0';
    std::size_t i = 0;
    for (; i < piece.size(); ++i) {
      const char c = piece[i];
      if (c == '\n') ++line_;
      if (c != ' ' && c != '\t' && c != '\r' && c != '\n') break;
    }
    const bool found = i < piece.size();
    const char c = found ? piece[i] : '\0';
    bytes_.skip(i);
    if (found) return c == '\0' ? '\1' : c;  // a NUL byte in the file is no end
  }
}

Result<bool> JsonElementReader::find_object() {
  DSV4RT_ASSIGN_OR_RETURN(char c, next_significant());
  if (!started_) {
    started_ = true;
    if (c == '[') {
      in_array_ = true;
      bytes_.skip(1);
      DSV4RT_ASSIGN_OR_RETURN(c, next_significant());
    }
  }
  if (in_array_ && !array_ended_) {
    if (c == ']') {
      array_ended_ = true;
      bytes_.skip(1);
      DSV4RT_ASSIGN_OR_RETURN(c, next_significant());
    } else if (any_element_) {
      if (c != ',') return stop(c == '\0' ? "the array ends without ]" : "',' or ']' is missing after an element");
      bytes_.skip(1);
      DSV4RT_ASSIGN_OR_RETURN(c, next_significant());
    }
  }
  if (c == '\0') {
    if (in_array_ && !array_ended_) return stop("the array ends without ]");
    return false;
  }
  if (c != '{' || array_ended_) return stop(quote(std::string_view(&c, 1)) + " where a JSON object is accepted");
  any_element_ = true;
  return true;
}

Status JsonElementReader::read_object() {
  errors_.set_line(line_);
  element_.clear();
  std::size_t depth = 0;
  bool in_string = false;
  bool escaped = false;
  bool too_long = false;
  for (;;) {
    DSV4RT_ASSIGN_OR_RETURN(const std::string_view piece, bytes_.peek(1));
    if (piece.empty()) {
      can_continue_ = false;
      return errors_.refuse(BadReason::kSyntax, "the log ends inside the JSON object that begins here");
    }
    std::size_t i = 0;
    bool ended = false;
    while (i < piece.size() && !ended) {
      const char c = piece[i++];
      if (c == '\n') ++line_;
      if (in_string) {
        if (escaped) {
          escaped = false;
        } else if (c == '\\') {
          escaped = true;
        } else if (c == '"') {
          in_string = false;
        }
      } else if (c == '"') {
        in_string = true;
      } else if (c == '{' || c == '[') {
        ++depth;
      } else if (c == '}' || c == ']') {
        ended = --depth == 0;
      }
    }
    too_long = too_long || element_.size() + i > max_element_bytes_;
    if (too_long) {
      element_.clear();
      element_.shrink_to_fit();
    } else {
      element_.append(piece.substr(0, i));
    }
    bytes_.skip(i);
    if (!ended) continue;
    if (!too_long) return {};
    return errors_.refuse(BadReason::kTooLong, "the JSON object that begins here is too long; accepted: at most " +
                                                   std::to_string(max_element_bytes_) + " bytes");
  }
}

Result<std::optional<std::string_view>> JsonElementReader::next() {
  auto found = find_object();
  if (!found) {
    can_continue_ = false;
    return found.status();
  }
  if (!*found) return std::optional<std::string_view>();
  DSV4RT_RETURN_IF_ERROR(read_object());
  return std::optional<std::string_view>(element_);
}

}  // namespace dsv4rt::replay
