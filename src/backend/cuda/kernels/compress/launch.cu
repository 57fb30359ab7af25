#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/compress/kernel.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int32_t kMaxPooledRows = 256;
constexpr std::int32_t kMaxClusters = 512;  // until a cluster looks at kMaxTokensPerCluster tokens
constexpr std::int32_t kMaxTokensPerCluster = 32;

Status check_input(const CompressorInput& input, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(require(input.dim == kHeadDim || input.dim == kIndexHeadDim, operation, "input.dim",
                                 input.dim, "512 and 128"));
  DSV4RT_RETURN_IF_ERROR(require(input.ratio >= 1, operation, "input.ratio", input.ratio, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(input.stride % 4 == 0 && input.stride >= state_width(input), operation,
                                 "input.stride", input.stride, "multiples of 4 from the row's width on"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.kv, 16, operation, "input.kv"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(input.score, 16, operation, "input.score"));
  return require_aligned(input.ape, 16, operation, "input.ape");
}

Status check_state(const StateRing& state, const char* operation) {
  DSV4RT_RETURN_IF_ERROR(require(state.ring_rows >= 1, operation, "state.ring_rows", state.ring_rows, "1 or more"));
  DSV4RT_RETURN_IF_ERROR(require(state.slot_bytes % 16 == 0, operation, "state.slot_bytes", state.slot_bytes,
                                 "multiples of 16"));
  return require_aligned(state.base, 16, operation, "state.base");
}

Status check_rows(const CompressParams& params) {
  const std::int32_t dim = params.is_index_key ? kIndexHeadDim : kHeadDim;
  DSV4RT_RETURN_IF_ERROR(require(params.input.dim == dim, "compress", "input.dim", params.input.dim,
                                 "512 for rows, 128 for index keys"));
  DSV4RT_RETURN_IF_ERROR(require(!params.hadamard || params.is_index_key, "compress", "hadamard", 1,
                                 "index keys only"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(params.rows.blocks, 16, "compress", "rows.blocks"));
  DSV4RT_RETURN_IF_ERROR(require(params.rows.shape.block_bytes % 16 == 0, "compress", "rows.shape.block_bytes",
                                 params.rows.shape.block_bytes, "multiples of 16"));
  return params.is_index_key ? require_shape(params.rows.shape, params.key_format, "compress", "rows.shape")
                             : require_shape(params.rows.shape, params.row_format, "compress", "rows.shape");
}

Status launch_many_rows(const CompressParams& params, std::int32_t tokens, cudaStream_t stream) {
  const std::size_t shared_bytes = many_rows_shared_bytes(pooled_rows(params.input));
  DSV4RT_CUDA_TRY(cudaFuncSetAttribute(compress_many_rows_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       static_cast<int>(many_rows_shared_bytes(kMaxPooledRows))));
  const auto blocks = static_cast<unsigned>(params.input.dim / kClusterChannels);
  // Most tokens complete nothing, and a block that only finds that out still waits for its shared memory.
  const std::int32_t tokens_per_cluster = std::clamp(tokens / kMaxClusters, 1, kMaxTokensPerCluster);
  const std::int32_t clusters = (tokens + tokens_per_cluster - 1) / tokens_per_cluster;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = blocks;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(clusters) * blocks);
  config.blockDim = dim3(kManyRowsThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return DSV4RT_CUDA_STATUS(cudaLaunchKernelEx(&config, compress_many_rows_kernel, params, tokens_per_cluster));
}

}  // namespace

Status CudaOps::compress(const CompressParams& params) {
  const std::int32_t tokens = params.step.counts.tokens;
  const CompressorInput& input = params.input;
  DSV4RT_RETURN_IF_ERROR(check_input(input, "compress"));
  DSV4RT_RETURN_IF_ERROR(check_state(params.state, "compress"));
  DSV4RT_RETURN_IF_ERROR(check_rows(params));
  DSV4RT_RETURN_IF_ERROR(require(input.ratio_class >= 0 && input.ratio_class < kMaxRatioClasses, "compress",
                                 "input.ratio_class", input.ratio_class, "0 to 3"));
  DSV4RT_RETURN_IF_ERROR(require_supported(input.ratio <= kMaxPooledRows && pooled_rows(input) <= kMaxPooledRows,
                                           "compress", "input.ratio", input.ratio,
                                           "at most 256 pooled rows (128 tokens with overlap)"));
  if (tokens <= 0) return {};
  if (pooled_rows(input) > kFewRows) return launch_many_rows(params, tokens, stream_);
  compress_few_rows_kernel<<<static_cast<unsigned>(tokens), static_cast<unsigned>(input.dim / 4), 0, stream_>>>(
      params);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

Status CudaOps::state_store(const StateStoreParams& params) {
  const std::int32_t tokens = params.step.counts.tokens;
  DSV4RT_RETURN_IF_ERROR(check_input(params.input, "state_store"));
  DSV4RT_RETURN_IF_ERROR(check_state(params.state, "state_store"));
  if (tokens <= 0) return {};
  state_store_kernel<<<static_cast<unsigned>(tokens), kStateStoreThreads, 0, stream_>>>(params);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

}  // namespace dsv4rt::cuda
