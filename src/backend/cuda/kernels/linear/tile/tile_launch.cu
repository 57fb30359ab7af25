#include <array>
#include <utility>

#include "backend/cuda/kernels/linear/shared/launch_planned.cuh"
#include "backend/cuda/kernels/linear/tile/tile_kernel.cuh"
#include "backend/cuda/kernels/linear/tile/tile_launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

struct Compiled {
  void (*kernel)(LinearParams);
  int threads;
};

// These are the variants in the order of their table; those of equal shapes share a kernel.
template <std::size_t... kNumbers>
constexpr std::array<Compiled, sizeof...(kNumbers)> compiled(std::index_sequence<kNumbers...>) {
  return {Compiled{&linear_tile_kernel<kTileVariants[kNumbers].tokens, kTileVariants[kNumbers].row_tiles>,
                   TileShape<kTileVariants[kNumbers].tokens, kTileVariants[kNumbers].row_tiles>::kThreads}...};
}
constexpr auto kCompiled = compiled(std::make_index_sequence<kTileVariants.size()>());

}  // namespace

Status launch_tiles(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream) {
  const Compiled one = kCompiled.at(static_cast<std::size_t>(plan.variant.number));
  return launch_planned(device, one.kernel, one.threads, plan, p, stream);
}

Status ask_tile_clusters(const CudaDevice& device, std::array<int, kTileVariants.size()>& clusters) {
  if (!device.has_sm90a()) return {};
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    const Compiled one = kCompiled[i];
    DSV4RT_ASSIGN_OR_RETURN(clusters[i],
                            device.clusters_at_once(one.kernel, kTileVariants[i].cluster_blocks, one.threads,
                                                    static_cast<std::size_t>(device.block_shared_bytes())));
  }
  return {};
}

}  // namespace dsv4rt::cuda
