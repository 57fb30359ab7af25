#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::attend(const AttendParams&) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
