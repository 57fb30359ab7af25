#include "backend/cuda/kernels/linear/splitk/splitk_plan.h"

#include <algorithm>

#include "backend/cuda/kernels/linear/shared/ring_blocks.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

const CudaPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CudaPackedLinear&>(*call.weight);
}

// Blocks that take so many segments each, over all calls.
std::int64_t grid_blocks(std::span<const LinearCall* const> calls, int groups, int row_tiles = 1) {
  std::int64_t blocks = 0;
  for (const LinearCall* call : calls) {
    const CudaPackedLinear& weight = packed(*call);
    blocks += ceil_div<std::int64_t>(weight.out_features(), kRowTile * row_tiles) * (weight.segments() / groups);
  }
  return blocks;
}

// Whether there are blocks of so many segments for most multiprocessors. Blocks of several segments, alone or in pairs,
// then divide evenly. Clusters of four and more, which single segments need, are placed on 124 of an H200's 132
// multiprocessors alone, five segments on some and two on others, and the launch ends with those of five.
bool occupies(std::span<const LinearCall* const> calls, int groups, int multiprocessors) {
  constexpr double kLeastShare = 0.6;  // of the multiprocessors
  return packed(*calls[0]).segments() % groups == 0 &&
         static_cast<double>(grid_blocks(calls, groups)) >= kLeastShare * multiprocessors;
}

Result<SplitKPlan> plan_variant(const SplitKVariant& variant, std::span<const LinearCall* const> calls,
                                std::int32_t tokens) {
  const Result<RingDevice>& asked = variant.device();
  if (!asked.ok()) return asked.status();
  const RingDevice& device = *asked;
  constexpr int kRingUnit = 1024;  // of swizzled stages
  constexpr int kMinSlots = 3;
  int slot_bytes = 0;
  int most_slots = kMinSlots;  // of use
  for (const LinearCall* call : calls) {
    const CudaPackedLinear& weight = packed(*call);
    slot_bytes = std::max(slot_bytes, variant.row_tiles * stage_tile_bytes(weight.tile_kind()) + variant.box_bytes);
    const auto scale_blocks = static_cast<int>(weight.in_features() / kScaleBlockInputs);
    most_slots = std::max(most_slots, ceil_div(scale_blocks, weight.segments()) * kStagesPerScale);
  }
  const std::int64_t blocks = grid_blocks(calls, variant.groups, variant.row_tiles) * ceil_div(tokens, variant.tokens);
  // Pairs fill the groups that multiprocessors come in.
  const bool fills = packed(*calls[0]).segments() <= 2 * variant.groups;
  const auto even = static_cast<int>(
      std::clamp<std::int64_t>(ceil_div<std::int64_t>(blocks, device.sms), 1, variant.most_blocks_per_sm));
  const int least = std::max(kMinSlots * slot_bytes, round_up(variant.sum_bytes, kRingUnit));
  for (int per_sm = fills ? even : ring_blocks(blocks, device.sms, variant.most_blocks_per_sm); per_sm > 0; --per_sm) {
    const int most_bytes = ring_block_bytes(device, per_sm);
    const int most_ring = (most_bytes - variant.other_bytes) / variant.groups / kRingUnit * kRingUnit;
    SplitKPlan plan{.variant = &variant};
    plan.ring_bytes = std::min(most_ring, std::max(most_slots * slot_bytes, least));
    plan.shared_bytes = variant.groups * plan.ring_bytes + variant.other_bytes;
    if (plan.ring_bytes >= least) return plan;
  }
  return Status{StatusCode::kInternal, "linear: no segment variant fits this device"};
}

template <int kTokens>
Result<SplitKPlan> plan_tokens(std::span<const LinearCall* const> calls, std::int32_t tokens) {
  const SplitKVariant& single = splitk_variant<kTokens, 1>();
  const Result<RingDevice>& device = single.device();
  if (!device.ok()) return device.status();
  for (const SplitKVariant* several : {&splitk_variant<kTokens, 4>(), &splitk_variant<kTokens, 2>()}) {
    if (occupies(calls, several->groups, device->sms)) return plan_variant(*several, calls, tokens);
  }
  return plan_variant(single, calls, tokens);
}

}  // namespace

Result<SplitKPlan> plan_splitk(std::span<const LinearCall* const> calls, std::int32_t tokens, int item_tokens,
                               int row_tiles, int groups) {
  for (const SplitKVariant* variant :
       {&splitk_variant<64, 1, 2>(), &splitk_variant<96, 1, 2>(), &splitk_variant<128, 1, 2>(),
        &splitk_variant<128, 1, 4>(), &splitk_variant<64, 1>(), &splitk_variant<64, 2>(), &splitk_variant<64, 4>(),
        &splitk_variant<32, 1>(), &splitk_variant<32, 2>(), &splitk_variant<32, 4>(), &splitk_variant<16, 1>(),
        &splitk_variant<16, 2>(), &splitk_variant<16, 4>()}) {
    if (variant->tokens == item_tokens && variant->row_tiles == row_tiles && variant->groups == groups) {
      if (packed(*calls[0]).segments() % groups != 0) return Status{StatusCode::kUnsupported, "linear: segments"};
      return plan_variant(*variant, calls, tokens);
    }
  }
  if (tokens <= 16) return plan_tokens<16>(calls, tokens);
  if (tokens <= 32) return plan_tokens<32>(calls, tokens);
  return plan_tokens<64>(calls, tokens);
}

}  // namespace dsv4rt::cuda
