#include <algorithm>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/write_kv/kernel.cuh"
#include "backend/cuda/kernels/write_kv/launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr std::int64_t kMaxTokensPerCluster = 32;

std::int64_t groups_of(std::int64_t items, std::int64_t size) {
  return (items + size - 1) / size;
}

// The launch and its block ranges.
class RowPlan {
 public:
  // clusters: pool_clusters(), where clusters pool rows.
  RowPlan(const RowParts& parts, std::int32_t tokens, int clusters) : tokens_(tokens), clusters_(clusters) {
    std::int64_t blocks[kRowParts] = {};
    if (const CompressParams* one = parts.compress; one != nullptr) blocks[kCompress] = plan_compress(*one);
    if (const CompressParams* one = parts.index_compress; one != nullptr) {
      // A warp pools an index key, but not one of many rows.
      (pools_in_registers(*one) ? blocks[kIndexCompress] : blocks[kCompress]) =
          pools_in_registers(*one) ? plan_index_compress(*one) : plan_compress(*one);
    }
    if (parts.window != nullptr) {
      launch_.window = *parts.window;
      if (parts.swa_ring != nullptr) launch_.swa_ring = *parts.swa_ring;
      launch_.window_tokens = tokens < kManyTokens || pooling_ != Pooling::kNone ? 1 : 4;
      blocks[kWindow] = groups_of(tokens, std::int64_t{launch_.window_tokens} * kBlockWindowRows);
    }
    if (parts.state != nullptr || parts.index_state != nullptr) {
      if (parts.state != nullptr) launch_.compress = *parts.state;
      if (parts.index_state != nullptr) launch_.index_compress = *parts.index_state;
      launch_.stores_state = parts.state != nullptr;
      launch_.stores_index_state = parts.index_state != nullptr;
      launch_.state_tokens = tokens < kManyTokens ? 1 : 8;
      blocks[kState] = groups_of(tokens, launch_.state_tokens);
    }
    if (parts.query != nullptr) {
      launch_.query = *parts.query;
      blocks[kQuery] = head_blocks(parts.query->heads, kWarpQueryHeads);
    }
    if (parts.index_query != nullptr) {
      launch_.index_query = *parts.index_query;
      // A warp of more heads finds their rotation once.
      launch_.warp_index_heads = kWarpIndexHeads * (tokens < kManyTokens ? 1 : 4);
      blocks[kIndexQuery] = head_blocks(parts.index_query->heads, launch_.warp_index_heads);
    }
    std::int64_t end = 0;
    for (int part = 0; part < kRowParts; ++part) {
      end += blocks[part];
      launch_.end[part] = static_cast<std::uint32_t>(end);
    }
  }

  [[nodiscard]] Status launch(const CudaDevice& device, cudaStream_t stream) const {
    switch (pooling_) {
      case Pooling::kNone:
        return launch_as<Pooling::kNone>(device, stream);
      case Pooling::kInRegisters:
        return launch_as<Pooling::kInRegisters>(device, stream);
      case Pooling::kInCluster:
        return launch_as<Pooling::kInCluster>(device, stream);
    }
    return {};
  }

 private:
  template <Pooling kPooling>
  [[nodiscard]] Status launch_as(const CudaDevice& device, cudaStream_t stream) const {
    LaunchShape shape{
        .grid = dim3(launch_.end[kRowParts - 1]), .threads = kRowThreads, .shared_bytes = sizeof(RowShared<kPooling>)};
    if constexpr (kPooling == Pooling::kInCluster) {
      DSV4RT_RETURN_IF_ERROR(device.prepare(row_kernel<kPooling>, shape.shared_bytes));
      shape.cluster_blocks = static_cast<unsigned>(launch_.compress.input.dim / kClusterChannels);
      shape.grid.x = static_cast<unsigned>(groups_of(shape.grid.x, shape.cluster_blocks) * shape.cluster_blocks);
    }
    return launch_pdl(row_kernel<kPooling>, shape, stream, launch_);
  }

  std::int64_t plan_compress(const CompressParams& params) {
    launch_.compress = params;
    if (pools_in_registers(params)) {
      pooling_ = Pooling::kInRegisters;
      launch_.compress_tokens = tokens_ < kManyTokens ? 1 : std::min(params.input.ratio, 32);
      return groups_of(tokens_, launch_.compress_tokens);
    }
    pooling_ = Pooling::kInCluster;
    launch_.compress_tokens = pool_cluster_tokens(static_cast<std::int32_t>(tokens_), clusters_);
    return groups_of(tokens_, launch_.compress_tokens) * (params.input.dim / kClusterChannels);
  }

  std::int64_t plan_index_compress(const CompressParams& params) {
    launch_.index_compress = params;
    pooling_ = Pooling::kInRegisters;
    launch_.index_compress_tokens = tokens_ < kManyTokens ? 1 : std::min(params.input.ratio, 32);
    return groups_of(tokens_, std::int64_t{launch_.index_compress_tokens} * kBlockIndexKeys);
  }

  [[nodiscard]] std::int64_t head_blocks(std::int32_t heads, int heads_of_warp) const {
    return groups_of(tokens_ * groups_of(heads, heads_of_warp), kRowWarps);
  }

  std::int64_t tokens_;
  int clusters_;
  RowLaunch launch_;
  Pooling pooling_ = Pooling::kNone;
};

}  // namespace

bool pools_in_registers(const CompressParams& params) {
  return pooled_rows(params.input) <= kMostRegisterRows;
}

std::int32_t pool_cluster_tokens(std::int32_t tokens, int clusters_at_once) {
  // Places for two clusters stay free for the launch's other parts.
  const std::int64_t clusters = std::max(clusters_at_once - 2, 1);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(groups_of(tokens, clusters), 1, kMaxTokensPerCluster));
}

Result<int> pool_clusters(const CudaDevice& device, std::int32_t dim) {
  return device.clusters_at_once(row_kernel<Pooling::kInCluster>, dim / kClusterChannels, kRowThreads,
                                 sizeof(RowShared<Pooling::kInCluster>));
}

Status launch_rows(const CudaDevice& device, const RowParts& parts, std::int32_t tokens, cudaStream_t stream) {
  if (tokens <= 0) return {};
  int clusters = 0;
  for (const CompressParams* pooled : {parts.compress, parts.index_compress}) {
    if (pooled == nullptr || pools_in_registers(*pooled)) continue;
    DSV4RT_ASSIGN_OR_RETURN(clusters, pool_clusters(device, pooled->input.dim));
  }
  return RowPlan(parts, tokens, clusters).launch(device, stream);
}

}  // namespace dsv4rt::cuda
