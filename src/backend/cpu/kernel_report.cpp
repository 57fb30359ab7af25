#include "backend/cpu/kernel_report.h"

#include <string>

namespace dsv4rt {

std::vector<KernelUse> cpu_kernel_uses(cpu::IsaLevel isa) {
  const std::string name(cpu::isa_level_name(isa));
  const std::string slow =
      isa == cpu::IsaLevel::kPortable ? "the processor offers none of AVX2 (with FMA and F16C) and AVX-512" : "";
  std::vector<KernelUse> uses;
  for (const char* operation : {"linear", "attend", "indexer_topk", "query", "index_query"}) {
    uses.push_back({.operation = operation, .steps = {}, .kernel = name, .slow = slow});
  }
  // Plain C++, whatever the processor.
  for (const char* operation : {"rms_norm", "swa_kv", "compress", "cache moves"}) {
    uses.push_back({.operation = operation, .steps = {}, .kernel = "portable", .slow = {}});
  }
  return uses;
}

}  // namespace dsv4rt
