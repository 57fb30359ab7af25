#include <algorithm>

#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/narrow_kernel.cuh"
#include "backend/cuda/kernels/linear/narrow_launch.h"
#include "backend/cuda/kernels/linear/ring_blocks.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Asked of the driver once; the same on every device of a process.
const Result<RingDevice>& narrow_device() {
  static const Result<RingDevice> device = prepare_ring_kernel(reinterpret_cast<const void*>(linear_narrow_kernel));
  return device;
}

}  // namespace

Result<NarrowPlan> plan_narrow(std::span<const LinearCall* const> calls, std::int32_t tokens, bool normed) {
  constexpr int kMinSlots = 3;
  const Result<RingDevice>& device = narrow_device();
  if (!device.ok()) return device.status();
  int input_bytes = 0;
  int segment_bytes = 0;    // of weights
  std::int64_t blocks = 0;  // of the grid
  for (const LinearCall* call : calls) {
    const auto& weight = static_cast<const CudaPackedLinear&>(*call->weight);
    const auto scale_blocks = static_cast<int>(weight.in_features() / kScaleBlockInputs);
    const int longest = ceil_div(scale_blocks, weight.segments());
    input_bytes = std::max(input_bytes, narrow_input_bytes(normed ? scale_blocks : longest, tokens));
    segment_bytes = std::max(segment_bytes, longest * kStagesPerScale * stage_tile_bytes(weight.tile_kind()));
    blocks += weight.out_features() / kRowTile * weight.segments();
  }
  for (int per_sm = ring_blocks(blocks, device->sms, kMostNarrowBlocks); per_sm > 0; --per_sm) {
    const int most_bytes = ring_block_bytes(*device, per_sm);
    NarrowPlan plan;
    plan.ring_bytes = (most_bytes - kNarrowOtherBytes - input_bytes) / kNarrowSlotBytes * kNarrowSlotBytes;
    plan.ring_bytes = std::min(plan.ring_bytes, std::max(segment_bytes, kMinSlots * kNarrowSlotBytes));
    plan.shared_bytes = plan.ring_bytes + kNarrowOtherBytes + input_bytes;
    if (plan.ring_bytes >= kMinSlots * kNarrowSlotBytes) return plan;
  }
  return NarrowPlan();
}

Status launch_narrow(const TileParams& p, const NarrowPlan& plan, cudaStream_t stream) {
  return launch_pdl(linear_narrow_kernel,
                    {.grid = dim3(static_cast<unsigned>(p.items * p.segments)),
                     .threads = kNarrowThreads,
                     .shared_bytes = static_cast<std::size_t>(plan.shared_bytes),
                     .cluster_blocks = static_cast<unsigned>(p.segments)},
                    stream, p);
}

}  // namespace dsv4rt::cuda
