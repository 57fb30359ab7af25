#include "backend/cuda/kernels/linear/segment_plan.h"

#include <algorithm>

#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

const CudaPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CudaPackedLinear&>(*call.weight);
}

// As many blocks an SM as leave each a ring.
void share_memory(SegmentPlan& plan, const SegmentDevice& device, int slot_bytes) {
  constexpr int kSharedUnit = 128;
  constexpr int kMinSlots = 3;
  const SegmentVariant& variant = *plan.variant;
  for (int blocks = variant.most_blocks_per_sm; blocks > 0; --blocks) {
    plan.shared_bytes = (device.shared_bytes / blocks - device.reserved_shared_bytes) / kSharedUnit * kSharedUnit;
    plan.ring_bytes = plan.shared_bytes - variant.other_bytes;
    if (plan.ring_bytes >= std::max(kMinSlots * slot_bytes, variant.sum_bytes)) return;
  }
  plan.variant = nullptr;
}

Result<SegmentPlan> plan_variant(const SegmentVariant& variant, std::span<const LinearCall* const> calls) {
  const Result<SegmentDevice>& device = variant.device();
  if (!device.ok()) return device.status();
  int slot_bytes = 0;
  for (const LinearCall* call : calls) {
    const TileKind kind = packed(*call).tile_kind();
    const int boxes = kind == TileKind::kFp8 ? variant.wide_boxes : 1;
    slot_bytes = std::max(slot_bytes, boxes * (stage_tile_bytes(kind) + variant.box_bytes));
  }
  SegmentPlan plan{.variant = &variant};
  share_memory(plan, *device, slot_bytes);
  if (plan.variant == nullptr) return Status{StatusCode::kInternal, "linear: no segment variant fits this device"};
  return plan;
}

}  // namespace

Result<SegmentPlan> plan_segments(std::span<const LinearCall* const> calls, std::int32_t tokens) {
  if (tokens <= 8) return plan_variant(segment_variant<8>(), calls);
  if (tokens <= 16) return plan_variant(segment_variant<16>(), calls);
  if (tokens <= 32) return plan_variant(segment_variant<32>(), calls);
  return plan_variant(segment_variant<64>(), calls);
}

}  // namespace dsv4rt::cuda
