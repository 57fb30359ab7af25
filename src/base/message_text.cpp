#include "base/message_text.h"

#include <cstddef>

namespace dsv4rt {

std::string printable(std::string_view text) {
  constexpr std::size_t kShownBytes = 160;
  constexpr char kHexDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f || c == '"' || c == '\\') {
      out += "\\x";
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
    } else {
      out += c;
    }
  }
  if (text.size() > kShownBytes) out += "...";
  return out;
}

std::string quote(std::string_view text) {
  return '"' + printable(text) + '"';
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
