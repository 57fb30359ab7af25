// Calendar times in logs.
#pragma once

#include <optional>
#include <string_view>

#include "replay/record_parser.h"

namespace dsv4rt::replay {

// "2023-11-16 18:17:03.9799600" as ticks since 1970 (UTC): 0 to 9 digits after the point (what is finer than a tick is
// cut off), 'T' instead of the blank, and an offset "Z" or "+hh:mm" are accepted. Nothing for any other text.
std::optional<Ticks> parse_time_stamp(std::string_view text) noexcept;

}  // namespace dsv4rt::replay
