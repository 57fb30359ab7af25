#include "backend/cpu/cpu_features.h"

#include <array>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace dsv4rt::cpu {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"portable", "avx2", "avx512"};

#if defined(__x86_64__)
// Bit 29 of ECX of leaf 1; Clang's __builtin_cpu_supports does not know the name.
bool has_f16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx >> 29 & 1U) != 0;
}
#endif

}  // namespace

IsaLevel detect_isa_level() {
#if defined(__x86_64__)
  // These also ask the operating system (XGETBV) whether it saves the registers.
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512vbmi")) {
    return IsaLevel::kAvx512;
  }
  if (avx2) return IsaLevel::kAvx2;
#endif
  return IsaLevel::kPortable;
}

std::string_view isa_level_name(IsaLevel level) noexcept {
  return kNames[static_cast<std::size_t>(level)];
}

std::optional<IsaLevel> isa_level_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<IsaLevel>(i);
  }
  return std::nullopt;
}

}  // namespace dsv4rt::cpu
