#include "backend/cuda/kernels/linear/splitk/splitk_launch.h"

#include <array>
#include <utility>

#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"

namespace dsv4rt::cuda {
namespace {

using Launch = Status (*)(const CudaDevice&, const LinearParams&, const LinearPlan&, cudaStream_t);

// These are the variants in the order of their table.
template <std::size_t... kNumbers>
constexpr std::array<Launch, sizeof...(kNumbers)> launches(std::index_sequence<kNumbers...>) {
  return {&launch_splitk_as<kSplitKVariants[kNumbers].tokens, kSplitKVariants[kNumbers].groups,
                            kSplitKVariants[kNumbers].row_tiles>...};
}

}  // namespace

Status launch_splitk(const CudaDevice& device, const LinearParams& p, const LinearPlan& plan, cudaStream_t stream) {
  static constexpr auto kLaunches = launches(std::make_index_sequence<kSplitKVariants.size()>());
  return kLaunches.at(static_cast<std::size_t>(plan.variant.number))(device, p, plan, stream);
}

}  // namespace dsv4rt::cuda
