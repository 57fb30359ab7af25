// Writing the native request log.
#pragma once

#include <string>

#include "replay/request.h"
#include "replay/request_source.h"

namespace dsv4rt::replay {

// One line of JSON each, with its newline. Reading what was written gives the same requests, except for their lines.
std::string native_log_header(const SourceInfo& info);
std::string native_log_line(const Request& request, const SourceInfo& info);

}  // namespace dsv4rt::replay
