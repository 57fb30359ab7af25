// Text from outside (files, arguments, logs, names), made fit for messages and terminals: escaped and of bounded
// length. tests/tidy finds paths and names that reach a message without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace dsv4rt {

inline constexpr std::size_t kShownBytes = 160;
inline constexpr std::size_t kShownPathBytes = 4096;

// `text` with everything that could act on a terminal, end a line or deceive a reader as \xNN, byte by byte: control
// characters (also those of two bytes), bidirectional and invisible format characters, line separators, bytes that are
// not UTF-8, quotes and backslashes. Other UTF-8 stays. After `shown_bytes` bytes of `text` it is cut, with "...".
std::string printable(std::string_view text, std::size_t shown_bytes = kShownBytes);
// The same in double quotes.
std::string quote(std::string_view text);
// A path at the beginning of a message.
std::string shown(const std::filesystem::path& path);

// A whole message, of several lines: as printable, but for newlines, quotes and backslashes, which stay. The last
// defence of a terminal; what came from outside has been escaped in the message already.
std::string printable_lines(std::string_view text);

// "key[3]": an element of an array of a configuration.
std::string indexed(std::string_view key, std::size_t index);

// "[512, 4096]"; "[]" for a scalar.
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace dsv4rt
