#include "backend/cuda/kernels/linear/fp8/fp8_kernel.cuh"
#include "backend/cuda/kernels/linear/fp8/fp8_launch.h"
#include "backend/cuda/kernels/linear/shared/launch_planned.cuh"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

using Kernel = void (*)(PrefillParams);

template <class... Shapes>
struct KernelTable {
  static constexpr std::array<Kernel, sizeof...(Shapes)> kOf = {&linear_fp8_kernel<Shapes>...};
};
constexpr auto kKernels = Fp8Shapes<KernelTable>::kOf;

}  // namespace

Status launch_fp8(const CudaDevice& device, const PrefillParams& p, const LinearPlan& plan, cudaStream_t stream) {
  const auto number = static_cast<std::size_t>(plan.variant.number);
  return launch_planned(device, kKernels.at(number), kFp8Variants.at(number).threads, plan, p, stream);
}

Status ask_fp8_clusters(const CudaDevice& device, std::array<int, kFp8Variants.size()>& clusters) {
  if (!device.has_sm90a()) return {};
  for (std::size_t i = 0; i < clusters.size(); ++i) {
    const Fp8Variant& variant = kFp8Variants[i];
    DSV4RT_ASSIGN_OR_RETURN(clusters[i],
                            device.clusters_at_once(kKernels[i], variant.cluster_blocks, variant.threads,
                                                    static_cast<std::size_t>(device.block_shared_bytes())));
  }
  return {};
}

}  // namespace dsv4rt::cuda
