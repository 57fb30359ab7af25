// A failed system call about a file, or the want of memory, as a Status.
#pragma once

#include <string>
#include <string_view>

#include "dsv4rt/status.h"

namespace dsv4rt {

// "<name>, made printable: cannot <action>: <the system's text for errno `error`>". kNotFound where there is no such
// file, kResourceExhausted for want of memory or descriptors, kFaulted where bytes to be written find no room (a full
// disk, a quota, a limit on file sizes), kBadInput otherwise.
Status system_failure(const std::string& name, const std::string& action, int error);

// kResourceExhausted for a std::bad_alloc: "<name>: out of memory while <doing>", or, when there is no memory for that
// either, "out of memory".
Status out_of_memory(std::string_view name, std::string_view doing) noexcept;

}  // namespace dsv4rt
