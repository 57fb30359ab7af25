// Version of the library and what it runs on.
#pragma once

#include <string>
#include <vector>

#include "dsv4rt/export.h"

namespace dsv4rt {

struct BuildInfo {
  std::string version;                // "major.minor.patch"
  std::string compiler;               // name and version
  std::string cpu_isa;                // instruction set the CPU backend chose on this machine
  std::vector<std::string> backends;  // names that EngineOptions::backend accepts in this build
};

DSV4RT_EXPORT BuildInfo build_info();

}  // namespace dsv4rt
