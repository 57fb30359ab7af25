#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/attend/decoded_rows.cuh"
#include "backend/cuda/kernels/attend/prompt_kernel.cuh"
#include "backend/cuda/kernels/attend/prompt_launch.h"
#include "backend/cuda/kernels/attend/query_map.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Boxes of a tile's rows x 64 values.
Status encode_decoded_rows_map(const DecodedRows& decoded, CUtensorMap& boxes) {
  return encode_row_map({.data = decoded.rows,
                         .value_bytes = 2,
                         .columns = kHeadDim,
                         .rows = decoded.shape.rows(),
                         .row_bytes = kHeadDim * 2,
                         .box_columns = kAtomValues,
                         .box_rows = kTileRows},
                        boxes);
}

}  // namespace

Status launch_prompt(const CudaDevice& device, const AttendParams& params, const WarpgroupPlan& plan,
                     const DecodedRows& rows, cudaStream_t stream) {
  DSV4RT_RETURN_IF_ERROR(device.prepare(attend_prompt_kernel, sizeof(PromptShared)));
  CUtensorMap queries;
  DSV4RT_RETURN_IF_ERROR(encode_query_map(params, queries));
  CUtensorMap outputs;
  DSV4RT_RETURN_IF_ERROR(encode_output_map(params, outputs));
  CUtensorMap boxes;
  DSV4RT_RETURN_IF_ERROR(encode_decoded_rows_map(rows, boxes));
  return launch_pdl(attend_prompt_kernel,
                    {.grid = dim3(static_cast<unsigned>(plan.blocks)),
                     .threads = kPromptThreads,
                     .shared_bytes = sizeof(PromptShared)},
                    stream, params, queries, outputs, boxes, block_pass(plan), rows);
}

}  // namespace dsv4rt::cuda
