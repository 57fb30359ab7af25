#include <algorithm>

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/gemv/gemv_kernel.cuh"
#include "backend/cuda/kernels/linear/gemv/gemv_launch.h"
#include "backend/cuda/kernels/linear/shared/ring_blocks.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Asked of the driver once; the same on every device of a process.
const Result<RingDevice>& gemv_device() {
  static const Result<RingDevice> device = prepare_ring_kernel(reinterpret_cast<const void*>(linear_gemv_kernel));
  return device;
}

}  // namespace

Result<GemvPlan> plan_gemv(std::span<const LinearCall* const> calls, std::int32_t tokens, bool normed) {
  constexpr int kMinSlots = 3;
  const Result<RingDevice>& device = gemv_device();
  if (!device.ok()) return device.status();
  int input_bytes = 0;
  int segment_bytes = 0;    // of weights
  std::int64_t blocks = 0;  // of the grid
  for (const LinearCall* call : calls) {
    const auto& weight = static_cast<const CudaPackedLinear&>(*call->weight);
    const auto scale_blocks = static_cast<int>(weight.in_features() / kScaleBlockInputs);
    const int longest = ceil_div(scale_blocks, weight.segments());
    input_bytes = std::max(input_bytes, gemv_input_bytes(normed ? scale_blocks : longest, tokens));
    segment_bytes = std::max(segment_bytes, longest * kStagesPerScale * stage_tile_bytes(weight.tile_kind()));
    blocks += weight.out_features() / kRowTile * weight.segments();
  }
  for (int per_sm = ring_blocks(blocks, device->sms, kMostGemvBlocks); per_sm > 0; --per_sm) {
    const int most_bytes = ring_block_bytes(*device, per_sm);
    GemvPlan plan;
    plan.ring_bytes = (most_bytes - kGemvOtherBytes - input_bytes) / kGemvSlotBytes * kGemvSlotBytes;
    plan.ring_bytes = std::min(plan.ring_bytes, std::max(segment_bytes, kMinSlots * kGemvSlotBytes));
    plan.shared_bytes = plan.ring_bytes + kGemvOtherBytes + input_bytes;
    if (plan.ring_bytes >= kMinSlots * kGemvSlotBytes) return plan;
  }
  return GemvPlan();
}

Status launch_gemv(const LinearParams& p, const GemvPlan& plan, cudaStream_t stream) {
  return launch_pdl(linear_gemv_kernel,
                    {.grid = dim3(static_cast<unsigned>(p.items * p.segments)),
                     .threads = kGemvThreads,
                     .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(p.segments)},
                    stream, p);
}

}  // namespace dsv4rt::cuda
