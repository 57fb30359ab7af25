#include "base/strict_json.h"

#include <limits>
#include <new>
#include <random>
#include <utility>

#include "base/json_keys.h"
#include "base/json_text.h"
#include "base/message_text.h"
#include "base/system_failure.h"

namespace dsv4rt {
namespace {

// Its start differs from process to process, so that no file can be made whose keys all have one hash.
class KeyHash {
 public:
  KeyHash() : start_(seed()) {}
  [[nodiscard]] std::uint64_t of(std::string_view text) const {
    std::uint64_t hash = start_;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    hash ^= hash >> 32;
    hash *= start_ | 1U;
    return hash ^ hash >> 29;
  }

 private:
  static std::uint64_t seed() {
    static const std::uint64_t value = std::uint64_t{std::random_device()()} << 32 | std::random_device()();
    return value;
  }
  std::uint64_t start_;
};

class Parser {
 public:
  Parser(std::string_view text, std::string_view source, const JsonBounds& bounds, JsonVisitor& visitor)
      : text_(text), source_(source), bounds_(bounds), visitor_(visitor) {}

  Status run() {
    // A document is a value; the states of a value's surroundings lie in path_, so that nothing recurses.
    if (!value()) return status_;
    while (!path_.empty()) {
      if (!next_member()) return status_;
    }
    skip_space();
    if (at_ != text_.size()) (void)malformed();
    return status_;
  }

 private:
  bool fail(const std::string& reason) {
    status_ = {StatusCode::kBadInput, printable(source_, kShownPathBytes) + ": " + reason};
    return false;
  }
  bool malformed() {
    const std::string place = path_text().empty() ? std::string() : " near key " + path_text();
    return fail("not valid JSON at byte " + std::to_string(at_) + place);
  }
  bool accept(Status status) {
    status_ = std::move(status);
    return status_.ok();
  }

  // The open keys, outermost first: "rope_scaling.factor".
  [[nodiscard]] std::string path_text() const {
    std::string text;
    for (const JsonLevel& level : path_) {
      if (level.key.empty()) continue;
      if (!text.empty()) text += '.';
      text += printable(level.key);
      if (text.size() > 2 * kShownBytes) return text + "...";
    }
    return text;
  }

  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
      ++at_;
    }
  }
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }

  // What follows inside the innermost open object or array: its end, or a comma, a key and a value.
  bool next_member() {
    JsonLevel& level = path_.back();
    skip_space();
    const bool first = std::exchange(fresh_, false);
    if (take(level.array ? ']' : '}')) return finish(level.array ? JsonKind::kArray : JsonKind::kObject);
    if (!first) {
      if (!take(',')) return malformed();
      skip_space();
    }
    return level.array ? value() : key() && value();
  }

  bool key() {
    if (peek() != '"') return malformed();
    JsonStringToken token;
    if (!read_json_string(text_, at_, token)) return malformed();
    if (token.written.size() > bounds_.key_bytes) {
      return fail("a key" + inside() + " has " + std::to_string(token.written.size()) + " bytes; at most " +
                  std::to_string(bounds_.key_bytes) + " are accepted");
    }
    JsonKeys& keys = keys_[path_.size() - 1];
    if (keys.size() == bounds_.keys) {
      return fail("more than " + std::to_string(bounds_.keys) + " keys" + inside() + "; fewer are accepted");
    }
    std::string& name = path_.back().key;
    path_.back().written = token.written;
    if (token.escaped) {
      unescape_json_string(token.written, name);
    } else {
      name.assign(token.written);
    }
    const auto same = [this](std::string_view a, std::string_view b) { return a == b || same_meaning(a, b); };
    if (!keys.insert(hash_.of(name), token.written, text_.data(), same)) {
      return fail("key " + path_text() + " is given twice; each key is accepted once");
    }
    skip_space();
    if (!take(':')) return malformed();
    return true;
  }

  [[nodiscard]] std::string inside() {
    path_.back().key.clear();
    return path_text().empty() ? std::string() : " in " + path_text();
  }

  bool same_meaning(std::string_view a, std::string_view b) {
    if (a.find('\\') == std::string_view::npos && b.find('\\') == std::string_view::npos) return false;
    unescape_json_string(a, scratch_);
    std::string other;
    unescape_json_string(b, other);
    return scratch_ == other;
  }

  bool value() {
    skip_space();
    switch (peek()) {
      case '{':
        return start(JsonKind::kObject);
      case '[':
        return start(JsonKind::kArray);
      case '"':
        return string();
      case 't':
        return literal("true", {JsonKind::kBoolean, 1, 0, {}});
      case 'f':
        return literal("false", {JsonKind::kBoolean, 0, 0, {}});
      case 'n':
        return literal("null", {JsonKind::kNull, 0, 0, {}});
      default:
        return number();
    }
  }

  bool literal(std::string_view word, const JsonValue& meaning) {
    if (text_.substr(at_, word.size()) != word) return malformed();
    at_ += word.size();
    return scalar(meaning);
  }

  bool number() {
    if (peek() != '-' && (peek() < '0' || peek() > '9')) return malformed();
    const std::size_t begin = at_;
    JsonValue meaning;
    switch (read_json_number(text_, at_, meaning)) {
      case JsonNumberError::kNone:
        return scalar(meaning);
      case JsonNumberError::kMalformed:
        return malformed();
      case JsonNumberError::kOutOfRange:
        break;
    }
    const std::string place = path_text().empty() ? std::string() : " near key " + path_text();
    return fail("number " + quote(text_.substr(begin, at_ - begin)) + place +
                " is not valid JSON here: finite numbers are accepted");
  }

  bool string() {
    JsonStringToken token;
    if (!read_json_string(text_, at_, token)) return malformed();
    if (!token.escaped) return scalar({JsonKind::kString, 0, 0, token.written});
    if (token.written.size() > bounds_.text_bytes) {
      return fail("a string with escapes" + (path_text().empty() ? std::string() : " at " + path_text()) + " has " +
                  std::to_string(token.written.size()) + " bytes; at most " + std::to_string(bounds_.text_bytes) +
                  " are accepted");
    }
    unescape_json_string(token.written, scratch_);
    const bool accepted = scalar({JsonKind::kString, 0, 0, scratch_});
    if (scratch_.capacity() > kKeptScratchBytes) std::string().swap(scratch_);
    return accepted;
  }

  bool scalar(const JsonValue& meaning) {
    if (!accept(visitor_.value(path_, meaning))) return false;
    advance();
    return true;
  }
  // After a complete value: the next element of an enclosing array.
  void advance() {
    if (!path_.empty() && path_.back().array) ++path_.back().index;
  }

  bool start(JsonKind kind) {
    if (path_.size() >= bounds_.depth) {
      return fail("JSON nested deeper than the " + std::to_string(bounds_.depth) + " levels that are accepted");
    }
    if (!accept(visitor_.value(path_, {kind, 0, 0, {}}))) return false;
    ++at_;
    path_.push_back({kind == JsonKind::kArray, {}, 0, {}});
    if (keys_.size() < path_.size()) keys_.emplace_back();
    fresh_ = true;
    return true;
  }

  bool finish(JsonKind kind) {
    keys_[path_.size() - 1].clear();
    path_.pop_back();
    if (!accept(visitor_.end(path_, kind))) return false;
    advance();
    return true;
  }

  static constexpr std::size_t kKeptScratchBytes = 4096;

  std::string_view text_;
  std::string_view source_;
  const JsonBounds& bounds_;
  JsonVisitor& visitor_;
  KeyHash hash_;
  Status status_;
  std::size_t at_ = 0;
  bool fresh_ = false;  // nothing has been read of the innermost object or array
  JsonPath path_;
  std::vector<JsonKeys> keys_;  // one set for each depth
  std::string scratch_;
};

}  // namespace

std::string_view json_kind_name(JsonKind kind) noexcept {
  switch (kind) {
    case JsonKind::kNull:
      return "null";
    case JsonKind::kBoolean:
      return "a boolean";
    case JsonKind::kUnsigned:
      return "a non-negative integer";
    case JsonKind::kNegative:
      return "a negative integer";
    case JsonKind::kFloat:
      return "a number that is not an integer of 64 bits";
    case JsonKind::kString:
      return "a string";
    case JsonKind::kObject:
      return "an object";
    case JsonKind::kArray:
      return "an array";
  }
  return "a value";
}

Status parse_strict_json(std::string_view text, std::string_view source, const JsonBounds& bounds,
                         JsonVisitor& visitor) {
  const auto refused = [source](const std::string& reason) {
    return Status{StatusCode::kBadInput, printable(source, kShownPathBytes) + ": " + reason};
  };
  try {
    if (text.size() >= std::numeric_limits<std::uint32_t>::max()) return refused("JSON of 4 GiB or more");
    if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
      return refused("not valid JSON: NUL byte at byte " + std::to_string(nul));
    }
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
    return Parser(text, source, bounds, visitor).run();
  } catch (const std::bad_alloc&) {
    return out_of_memory(source, "reading JSON");
  }
}

}  // namespace dsv4rt
