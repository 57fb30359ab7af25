// UTF-8, strictly: no overlong forms, no surrogates, nothing beyond U+10FFFF.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4rt {

inline bool is_utf8_continuation(char c) noexcept {
  return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U;
}

// A character and how many bytes it takes; 0 bytes where there is none.
struct Utf8Character {
  std::uint32_t code = 0;
  std::size_t bytes = 0;
};

// Precondition: at < text.size().
inline Utf8Character utf8_at(std::string_view text, std::size_t at) noexcept {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xc2 || lead > 0xf4) return {};
  const std::size_t bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() - at < bytes) return {};
  std::uint32_t code = lead & (0x7fU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!is_utf8_continuation(text[at + i])) return {};
    code = code << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3fU);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return {};
  return {code, bytes};
}

inline bool is_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = utf8_at(text, at).bytes;
    if (bytes == 0) return false;
    at += bytes;
  }
  return true;
}

// Appends the character; `code` must be one.
inline void append_utf8(std::string& out, std::uint32_t code) {
  const auto add = [&out](std::uint32_t byte) { out += static_cast<char>(byte); };
  const auto tail = [&](std::uint32_t shift) { add(0x80U | (code >> shift & 0x3fU)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0U | code >> 6);
    return tail(0);
  }
  if (code < 0x10000) {
    add(0xe0U | code >> 12);
    tail(6);
    return tail(0);
  }
  add(0xf0U | code >> 18);
  tail(12);
  tail(6);
  tail(0);
}

}  // namespace dsv4rt
