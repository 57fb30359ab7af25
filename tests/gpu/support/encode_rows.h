// common/encode_fragments.cuh on rows in global memory.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "base/bfloat16.h"

namespace dsv4rt::test {

// Codes [rows, 128] and E8M0 scale codes [rows] of values [rows, 128]. rows: a multiple of 16.
cudaError_t encode_rows(const bf16* values, std::int32_t rows, std::uint8_t* codes, std::uint8_t* scale_codes);

}  // namespace dsv4rt::test
