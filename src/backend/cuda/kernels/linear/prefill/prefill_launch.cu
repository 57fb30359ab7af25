#include <utility>

#include "backend/cuda/kernels/linear/prefill/prefill_kernel.cuh"
#include "backend/cuda/kernels/linear/prefill/prefill_launch.h"
#include "backend/cuda/kernels/linear/shared/launch_planned.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

using Kernel = void (*)(PrefillParams);

// These are the variants in the order of their table.
template <std::size_t... kNumbers>
constexpr std::array<Kernel, sizeof...(kNumbers)> kernels(std::index_sequence<kNumbers...>) {
  return {&linear_prefill_kernel<kPrefillVariants[kNumbers].tokens>...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<kPrefillVariants.size()>());

}  // namespace

Status launch_prefill(const CudaDevice& device, const PrefillParams& p, const LinearPlan& plan, cudaStream_t stream) {
  return launch_planned(device, kKernels.at(static_cast<std::size_t>(plan.variant.number)), kPrefillThreads, plan, p,
                        stream);
}

Status ask_prefill_clusters(const CudaDevice& device, std::array<int, kPrefillVariants.size()>& clusters) {
  if (!device.has_sm90a()) return {};
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    DSV4RT_ASSIGN_OR_RETURN(clusters[i],
                            device.clusters_at_once(kKernels[i], kPrefillBlocks, kPrefillThreads,
                                                    static_cast<std::size_t>(device.block_shared_bytes())));
  }
  return {};
}

}  // namespace dsv4rt::cuda
