// Version of the library and what it runs on. The macros also serve C.
#pragma once

// Of the header a program is compiled with; dsv4rt_version() and build_info() tell the library's.
#define DSV4RT_VERSION_MAJOR 0
#define DSV4RT_VERSION_MINOR 1
#define DSV4RT_VERSION_PATCH 0
// Ascending: 100 for 0.1.0. For #if.
#define DSV4RT_VERSION_NUMBER (DSV4RT_VERSION_MAJOR * 10000 + DSV4RT_VERSION_MINOR * 100 + DSV4RT_VERSION_PATCH)

#ifdef __cplusplus
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
#endif
