#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::compress(const CompressParams&) {
  return {StatusCode::kInternal, "operation not present"};
}
Status CpuOps::state_store(const StateStoreParams&) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
