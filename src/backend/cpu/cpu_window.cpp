#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::window_rows(const WindowRowsParams&) {
  return {StatusCode::kInternal, "operation not present"};
}
Status CpuOps::window_store(const WindowStoreParams&) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
