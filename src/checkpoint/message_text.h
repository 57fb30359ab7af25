// Text from files, made fit for messages: quoted, escaped and of bounded length.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace dsv4rt {

// `text` in double quotes; control characters and non-ASCII bytes as \xNN; cut after 160 bytes with "...".
std::string quote(std::string_view text);

// "[512, 4096]"; "[]" for a scalar.
std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace dsv4rt
