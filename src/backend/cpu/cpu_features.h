// What the processor offers, asked once per backend.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dsv4rt::cpu {

// Instruction-set levels that the CPU backend has kernels for, each a superset of the one before.
enum class IsaLevel : std::uint8_t {
  kPortable,  // plain C++
  kAvx2,      // AVX2, FMA and F16C
  kAvx512,    // AVX-512 F, BW, DQ, VL and VBMI
};

// The highest level that processor and operating system support.
IsaLevel detect_isa_level();

// "portable", "avx2", "avx512".
std::string_view isa_level_name(IsaLevel level) noexcept;
std::optional<IsaLevel> isa_level_from_name(std::string_view name) noexcept;

}  // namespace dsv4rt::cpu
