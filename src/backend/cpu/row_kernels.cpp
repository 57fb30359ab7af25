#include "backend/cpu/row_kernels.h"

namespace dsv4rt::cpu {

const RowKernels& row_kernels(IsaLevel level) {
  if (level >= IsaLevel::kAvx512 && avx512_row_kernels() != nullptr) return *avx512_row_kernels();
  if (level >= IsaLevel::kAvx2 && avx2_row_kernels() != nullptr) return *avx2_row_kernels();
  return *portable_row_kernels();
}

}  // namespace dsv4rt::cpu
