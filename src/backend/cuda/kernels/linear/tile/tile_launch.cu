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

template <int kTokens, int kRowTiles, int kParts>
constexpr Compiled kCompiled{&linear_tile_kernel<kTokens, kRowTiles, kParts>,
                             TileShape<kTokens, kRowTiles, kParts>::kThreads};

Compiled compiled(const TileVariant& variant) {
  const bool parts = variant.parts > 1;
  switch (variant.tokens) {
    case 256:
      return kCompiled<256, 2, 1>;
    case 192:
      return parts ? kCompiled<192, 1, 2> : kCompiled<192, 2, 1>;
    case 160:
      return parts ? kCompiled<160, 1, 2> : kCompiled<160, 2, 1>;
    default:
      return parts ? kCompiled<128, 1, 2> : kCompiled<128, 2, 1>;
  }
}

}  // namespace

Status launch_tiles(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream) {
  const Compiled one = compiled(kTileVariants.at(static_cast<std::size_t>(plan.variant.number)));
  return launch_planned(device, one.kernel, one.threads, plan, p, stream);
}

Status ask_tile_clusters(const CudaDevice& device, std::array<int, kTileVariants.size()>& clusters) {
  if (!device.has_sm90a()) return {};
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    const Compiled one = compiled(kTileVariants[i]);
    DSV4RT_ASSIGN_OR_RETURN(clusters[i],
                            device.clusters_at_once(one.kernel, kTileVariants[i].cluster_blocks, one.threads,
                                                    static_cast<std::size_t>(device.block_shared_bytes())));
  }
  return {};
}

}  // namespace dsv4rt::cuda
