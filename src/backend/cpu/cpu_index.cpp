#include "backend/cpu/cpu_ops.h"

namespace dsv4rt::cpu {

Status CpuOps::index_query(const IndexQueryParams&) {
  return {StatusCode::kInternal, "operation not present"};
}
Status CpuOps::select_rows(const SelectRowsParams&) {
  return {StatusCode::kInternal, "operation not present"};
}

}  // namespace dsv4rt::cpu
