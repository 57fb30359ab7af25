// The operations that are parts of the row kernel, alone and together.
#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/update_rows/checks.h"
#include "backend/cuda/kernels/update_rows/launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

std::int32_t needed_state_rows(const CompressorInput& input) { return input.overlap ? 2 * input.ratio : input.ratio; }

// Whether the step's projections may enter the state ring while blocks of it are pooled.
bool stores_beside_pooling(const CompressParams& params) {
  return ring_keeps_needed_rows(params.state.ring_rows, needed_state_rows(params.input), params.step.counts);
}

}  // namespace

Status CudaOps::query(const QueryParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_query(params, "query"));
  return launch_rows({.query = &params}, params.step.counts.tokens, stream_);
}

Status CudaOps::index_query(const IndexQueryParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_index_query(params, "index_query"));
  return launch_rows({.index_query = &params}, params.step.counts.tokens, stream_);
}

Status CudaOps::window_rows(const WindowRowsParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_window_rows(params, "window_rows"));
  return launch_rows({.window = &params}, params.step.counts.tokens, stream_);
}

Status CudaOps::compress(const CompressParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_compress(params, "compress"));
  const RowParts parts = params.is_index_key ? RowParts{.index_compress = &params} : RowParts{.compress = &params};
  return launch_rows(parts, params.step.counts.tokens, stream_);
}

Status CudaOps::state_store(const StateStoreParams& params) {
  DSV4RT_RETURN_IF_ERROR(check_state(params.input, params.state, "state_store"));
  const CompressParams state{.step = params.step, .input = params.input, .state = params.state};
  return launch_rows({.state = &state}, params.step.counts.tokens, stream_);
}

Status CudaOps::update_rows(const UpdateRowsParams& params) {
  constexpr const char* kName = "update_rows";
  DSV4RT_RETURN_IF_ERROR(check_query(params.query, kName));
  if (params.index_query) DSV4RT_RETURN_IF_ERROR(check_index_query(*params.index_query, kName));
  DSV4RT_RETURN_IF_ERROR(check_window_rows(params.window, kName));
  if (params.window_ring) {
    DSV4RT_RETURN_IF_ERROR(check_window_ring(*params.window_ring, params.window.staged_shape, kName));
  }
  RowParts parts{.query = &params.query,
                 .index_query = params.index_query ? &*params.index_query : nullptr,
                 .window = &params.window,
                 .window_ring = params.window_ring ? &*params.window_ring : nullptr};
  RowParts stores;  // of what cannot be stored in the same launch
  for (const auto* compressor : {&params.compress, &params.index_compress}) {
    if (!*compressor) continue;
    const CompressParams& one = **compressor;
    DSV4RT_RETURN_IF_ERROR(check_compress(one, kName));
    const bool index = compressor == &params.index_compress;
    (index ? parts.index_compress : parts.compress) = &one;
    RowParts& launch = stores_beside_pooling(one) ? parts : stores;
    (index ? launch.index_state : launch.state) = &one;
  }
  const std::int32_t tokens = params.query.step.counts.tokens;
  if (parts.compress != nullptr && parts.index_compress != nullptr &&
      !(few_rows(*parts.compress) && few_rows(*parts.index_compress))) {
    // Two kinds of pooling do not share a launch: the index keys get their own, their state after it.
    DSV4RT_RETURN_IF_ERROR(launch_rows({.index_compress = parts.index_compress}, tokens, stream_));
    parts.index_compress = nullptr;
  }
  DSV4RT_RETURN_IF_ERROR(launch_rows(parts, tokens, stream_));
  if (stores.state == nullptr && stores.index_state == nullptr) return {};
  return launch_rows(stores, tokens, stream_);
}

}  // namespace dsv4rt::cuda
