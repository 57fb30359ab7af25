// Launches of the row kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kernels/write_kv/params.h"
#include "dsv4rt/status.h"

namespace dsv4rt::cuda {

// The parts that one launch does; null: not this one. All belong to the same step and have been checked.
struct RowParts {
  const QueryParams* query = nullptr;
  const IndexQueryParams* index_query = nullptr;
  const SwaKvParams* window = nullptr;
  const SwaRing* swa_ring = nullptr;  // ring of the window rows; null: they are staged only
  // Rows that complete. Both pools_in_registers(), or one of any kind.
  const CompressParams* compress = nullptr;
  const CompressParams* index_compress = nullptr;
  // Projections that enter the state rings.
  const CompressParams* state = nullptr;
  const CompressParams* index_state = nullptr;
};

// From this many tokens on most complete nothing, and the parts are better launched apart from the pooling, whose
// registers and shared memory would keep their blocks few.
inline constexpr std::int32_t kManyTokens = 1024;

// Whether a compressor's rows are pooled from so few that one block of threads does it.
bool pools_in_registers(const CompressParams& params);

// Whether an update is one launch: what pools rows and everything else besides.
bool one_launch(const WriteKvParams& params);

// Tokens that a cluster looks at which pools many rows, on a device that runs so many of them at once.
std::int32_t pool_cluster_tokens(std::int32_t tokens, int clusters_at_once);
// Such clusters, whose blocks share `dim` channels.
Result<int> pool_clusters(const CudaDevice& device, std::int32_t dim);

// Nothing is launched for a step without tokens.
Status launch_rows(const CudaDevice& device, const RowParts& parts, std::int32_t tokens, cudaStream_t stream);

}  // namespace dsv4rt::cuda
