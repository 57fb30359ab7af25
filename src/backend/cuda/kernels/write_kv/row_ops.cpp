// The operations that are parts of the row kernel, alone and together.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/write_kv/checks.h"
#include "backend/cuda/kernels/write_kv/launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

std::int32_t needed_state_rows(const CompressorInput& input) {
  return input.overlap ? 2 * input.ratio : input.ratio;
}

// Whether the step's projections may enter the state ring while blocks of it are pooled.
bool stores_beside_pooling(const CompressParams& params) {
  return ring_keeps_needed_rows(params.state.ring_rows, needed_state_rows(params.input), params.step.counts);
}

}  // namespace

bool one_launch(const WriteKvParams& params) {
  if (params.window.step.counts.tokens >= kManyTokens) return !params.compress && !params.index_compress;
  if (params.compress && !stores_beside_pooling(*params.compress)) return false;
  if (!params.index_compress) return true;
  return stores_beside_pooling(*params.index_compress) && pools_in_registers(*params.index_compress) &&
         (!params.compress || pools_in_registers(*params.compress));
}

Status CudaOps::query(const QueryParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_query(params, "query"));
  return launch_rows(device_, {.query = &params}, params.step.counts.tokens, stream_);
}

Status CudaOps::index_query(const IndexQueryParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_index_query(params, "index_query"));
  return launch_rows(device_, {.index_query = &params}, params.step.counts.tokens, stream_);
}

Status CudaOps::swa_kv(const SwaKvParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_swa_kv(params, "swa_kv"));
  return launch_rows(device_, {.window = &params}, params.step.counts.tokens, stream_);
}

Status CudaOps::compress(const CompressParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_compress(params, "compress"));
  const RowParts parts = params.is_index_key ? RowParts{.index_compress = &params} : RowParts{.compress = &params};
  return launch_rows(device_, parts, params.step.counts.tokens, stream_);
}

Status CudaOps::state_store(const StateStoreParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_state(params.input, params.state, "state_store"));
  CompressParams state;
  state.step = params.step;
  state.input = params.input;
  state.state = params.state;
  return launch_rows(device_, {.state = &state}, params.step.counts.tokens, stream_);
}

Status CudaOps::write_kv(const WriteKvParams& params) {
  constexpr const char* kName = "write_kv";
  if (params.query) DSV4RT_RETURN_IF_ERROR(check_query(*params.query, kName));
  if (params.index_query) DSV4RT_RETURN_IF_ERROR(check_index_query(*params.index_query, kName));
  DSV4RT_RETURN_IF_ERROR(check_swa_kv(params.window, kName));
  if (params.swa_ring) {
    DSV4RT_RETURN_IF_ERROR(check_window_ring(*params.swa_ring, params.window.staged_shape, kName));
  }
  // Pooling reads state rings that the step's projections then enter: in the same launch where the rings keep what
  // is read, after it otherwise.
  RowParts pooling;
  RowParts parts{.query = params.query ? &*params.query : nullptr,
                 .index_query = params.index_query ? &*params.index_query : nullptr,
                 .window = &params.window,
                 .swa_ring = params.swa_ring ? &*params.swa_ring : nullptr};
  const std::int32_t tokens = params.window.step.counts.tokens;
  if (params.compress) {
    DSV4RT_RETURN_IF_ERROR(check_compress(*params.compress, kName));
    parts.state = pooling.compress = &*params.compress;
  }
  if (params.index_compress) {
    DSV4RT_RETURN_IF_ERROR(check_compress(*params.index_compress, kName));
    parts.index_state = pooling.index_compress = &*params.index_compress;
  }
  if (one_launch(params)) {
    parts.compress = pooling.compress;
    parts.index_compress = pooling.index_compress;
    return launch_rows(device_, parts, tokens, stream_);
  }
  for (const RowParts& one :
       {RowParts{.compress = pooling.compress}, RowParts{.index_compress = pooling.index_compress}}) {
    if (one.compress != nullptr || one.index_compress != nullptr) {
      DSV4RT_RETURN_IF_ERROR(launch_rows(device_, one, tokens, stream_));
    }
  }
  return launch_rows(device_, parts, tokens, stream_);
}

}  // namespace dsv4rt::cuda
