#include "base/message_text.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"

namespace dsv4rt {
namespace {

void append_escaped(std::string& out, std::string_view bytes) {
  constexpr char kHexDigits[] = "0123456789abcdef";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHexDigits[byte >> 4];
    out += kHexDigits[byte & 15];
  }
}

struct CodeRange {
  std::uint32_t first;
  std::uint32_t last;
};

// Controls, and what is not seen but changes what is: bidirectional marks, joiners, separators, fillers, tags, code
// points that are no characters.
constexpr auto kHiddenRanges = std::to_array<CodeRange>({
    {0x00, 0x1f},     {0x7f, 0x9f},     {0xad, 0xad},     {0x34f, 0x34f},      {0x61c, 0x61c},
    {0x115f, 0x1160}, {0x17b4, 0x17b5}, {0x180b, 0x180f}, {0x200b, 0x200f},    {0x2028, 0x202e},
    {0x2060, 0x206f}, {0x3164, 0x3164}, {0xd800, 0xf8ff}, {0xfe00, 0xfe0f},    {0xfeff, 0xfeff},
    {0xffa0, 0xffa0}, {0xfff0, 0xfffb}, {0xfffe, 0xffff}, {0xe0000, 0x10ffff},
});

bool is_hidden(std::uint32_t code) {
  const auto* const range = std::find_if(kHiddenRanges.begin(), kHiddenRanges.end(),
                                         [code](const CodeRange& candidate) { return code <= candidate.last; });
  return range != kHiddenRanges.end() && code >= range->first;
}

std::string escaped(std::string_view text, std::string_view escaped_marks, bool keep_newlines) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character character = utf8_at(text, at);
    const std::size_t bytes = std::max<std::size_t>(character.bytes, 1);
    const std::string_view piece = text.substr(at, bytes);
    const bool kept = keep_newlines && piece == "\n";
    const bool marked = bytes == 1 && escaped_marks.find(piece[0]) != std::string_view::npos;
    if (!kept && (character.bytes == 0 || is_hidden(character.code) || marked)) {
      append_escaped(out, piece);
    } else {
      out += piece;
    }
    at += bytes;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text, std::size_t shown_bytes) {
  if (text.size() <= shown_bytes) return escaped(text, "\"\\", false);
  // Not in the middle of a character: its half would be escaped as if it were damaged.
  std::size_t end = shown_bytes;
  while (end > 0 && shown_bytes - end < 3 && is_utf8_continuation(text[end])) --end;
  return escaped(text.substr(0, end), "\"\\", false) + "...";
}

std::string quote(std::string_view text) {
  return '"' + printable(text) + '"';
}

std::string shown(const std::filesystem::path& path) {
  return printable(path.native(), kShownPathBytes);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, "", true);
}

std::string indexed(std::string_view key, std::size_t index) {
  return std::string(key).append("[").append(std::to_string(index)).append("]");
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

}  // namespace dsv4rt
