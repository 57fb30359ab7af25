#include "backend/cuda/kernels/linear/segment_plan.h"

#include <algorithm>

#include "backend/cuda/kernels/linear/ring_blocks.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

const CudaPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CudaPackedLinear&>(*call.weight);
}

Result<SegmentPlan> plan_variant(const SegmentVariant& variant, std::span<const LinearCall* const> calls) {
  constexpr int kSharedUnit = 128;
  constexpr int kMinSlots = 3;
  const Result<SegmentDevice>& device = variant.device();
  if (!device.ok()) return device.status();
  int slot_bytes = 0;
  int most_slots = kMinSlots;  // of use
  std::int64_t blocks = 0;     // of the grid
  for (const LinearCall* call : calls) {
    const CudaPackedLinear& weight = packed(*call);
    slot_bytes = std::max(slot_bytes, stage_tile_bytes(weight.tile_kind()) + variant.box_bytes);
    const auto scale_blocks = static_cast<int>(weight.in_features() / kScaleBlockInputs);
    most_slots = std::max(most_slots, ceil_div(scale_blocks, weight.segments()) * kStagesPerScale);
    blocks += weight.out_features() / kRowTile * weight.segments();
  }
  for (int per_sm = ring_blocks(blocks, device->sms, variant.most_blocks_per_sm); per_sm > 0; --per_sm) {
    const int most_bytes = (device->shared_bytes / per_sm - device->reserved_shared_bytes) / kSharedUnit * kSharedUnit;
    SegmentPlan plan{.variant = &variant};
    plan.ring_bytes = std::min(most_bytes - variant.other_bytes, std::max(most_slots * slot_bytes, variant.sum_bytes));
    plan.shared_bytes = plan.ring_bytes + variant.other_bytes;
    if (plan.ring_bytes >= std::max(kMinSlots * slot_bytes, variant.sum_bytes)) return plan;
  }
  return Status{StatusCode::kInternal, "linear: no segment variant fits this device"};
}

}  // namespace

Result<SegmentPlan> plan_segments(std::span<const LinearCall* const> calls, std::int32_t tokens) {
  if (tokens <= 16) return plan_variant(segment_variant<16>(), calls);
  if (tokens <= 32) return plan_variant(segment_variant<32>(), calls);
  return plan_variant(segment_variant<64>(), calls);
}

}  // namespace dsv4rt::cuda
