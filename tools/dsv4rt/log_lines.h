// Lines of the log on stderr: "error: text", "error: rank 1: text".
#pragma once

#include <string>

namespace dsv4rt::cli {

// What every line begins with after its level; empty: nothing.
void set_log_label(const std::string& label);

}  // namespace dsv4rt::cli
