#include "backend/cpu/cpu_linear.h"

#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::linear(std::int32_t, std::span<const LinearCall>) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
