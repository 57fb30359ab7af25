// Text from files, made fit for messages: quoted, escaped and of bounded length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv4rt {

// `text` with control characters, non-ASCII bytes, quotes and backslashes as \xNN; cut after 160 bytes
// with "...".
std::string printable(std::string_view text);
// The same in double quotes.
std::string quote(std::string_view text);

// "[512, 4096]"; "[]" for a scalar.
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace dsv4rt
