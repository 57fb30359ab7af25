// Version of the library and what it runs on.
#pragma once

#include <string>

#include "dsv4rt/export.h"

namespace dsv4rt {

struct BuildInfo {
  std::string version;   // "major.minor.patch"
  std::string compiler;  // name and version
  std::string cpu_isa;   // instruction set the CPU backend chose on this machine
};

DSV4RT_EXPORT BuildInfo build_info();

}  // namespace dsv4rt
