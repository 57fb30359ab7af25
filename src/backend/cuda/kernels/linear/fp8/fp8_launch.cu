#include <utility>

#include "backend/cuda/kernels/linear/fp8/fp8_kernel.cuh"
#include "backend/cuda/kernels/linear/fp8/fp8_launch.h"
#include "backend/cuda/kernels/linear/shared/launch_planned.cuh"

namespace dsv4rt::cuda {
namespace {

using Kernel = void (*)(PrefillParams);

// These are the variants in the order of their table.
template <std::size_t... kNumbers>
constexpr std::array<Kernel, sizeof...(kNumbers)> kernels(std::index_sequence<kNumbers...>) {
  return {&linear_fp8_kernel<kFp8Variants[kNumbers].token_groups, kFp8Variants[kNumbers].row_groups>...};
}
constexpr auto kKernels = kernels(std::make_index_sequence<kFp8Variants.size()>());

}  // namespace

Status launch_fp8(const CudaDevice& device, const PrefillParams& p, const LinearPlan& plan, cudaStream_t stream) {
  const auto number = static_cast<std::size_t>(plan.variant.number);
  return launch_planned(device, kKernels.at(number), kFp8Variants.at(number).threads, plan, p, stream);
}

}  // namespace dsv4rt::cuda
