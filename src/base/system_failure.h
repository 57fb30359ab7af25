// A failed system call about a file as a Status.
#pragma once

#include <string>

#include "dsv4rt/status.h"

namespace dsv4rt {

// "<name>, made printable: cannot <action>: <the system's text for errno `error`>". kNotFound where there is no such
// file, kResourceExhausted for want of memory, descriptors or room on the disk, kBadInput otherwise.
Status system_failure(const std::string& name, const std::string& action, int error);

}  // namespace dsv4rt
