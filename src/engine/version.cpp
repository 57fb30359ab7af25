#include "dsv4rt/version.h"

#include "backend/cpu/cpu_features.h"

namespace dsv4rt {

BuildInfo build_info() {
  BuildInfo info;
  info.version = DSV4RT_VERSION;
#if defined(__clang__)
  info.compiler = "clang " __clang_version__;
#else
  info.compiler = "gcc " __VERSION__;
#endif
  info.cpu_isa = cpu::isa_level_name(cpu::detect_isa_level());
  info.backends = {"cpu"};
#if defined(DSV4RT_HAVE_CUDA)
  info.backends.emplace_back("cuda");
#endif
  return info;
}

}  // namespace dsv4rt
