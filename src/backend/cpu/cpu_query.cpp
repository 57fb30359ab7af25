#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::rms_norm(const RmsNormParams&) {
  return {StatusCode::kInternal, "operation not present"};
}
Status CpuOps::query(const QueryParams&) {
  return {StatusCode::kInternal, "operation not present"};
}
Status CpuOps::rotate_heads(const RotateHeadsParams&) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
