#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::begin_step(const StepView&, std::span<const CacheTable>) {
  return {StatusCode::kInternal, "operation not present"};
}
Status CpuOps::copy_slot(std::int32_t, std::int32_t, std::span<const CacheTable>, std::span<const CacheRings>) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
