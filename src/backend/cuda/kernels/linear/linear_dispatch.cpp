#include "backend/cuda/kernels/linear/linear_dispatch.h"

#include <algorithm>

#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/linear/gemv/gemv_shape.h"
#include "backend/cuda/kernels/linear/linear_costs.h"
#include "backend/cuda/kernels/linear/linear_rings.h"
#include "backend/cuda/kernels/linear/splitk/splitk_shape.h"
#include "backend/ops.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// The gemv kernel takes kGemvTokens, but with more than these the split-K kernel behind one that rounds takes less
// time: a captured step of V4-Flash with three or four sequences 2.69 ms for 2.80 (H200).
constexpr std::int32_t kMostGemvTokens = 2;
// Up to these every problem is the split-K kernel's, and its rings are to be fetched while inputs are rounded.
constexpr std::int32_t kMostSplitKTokens = 64;
// From these tokens on a launch has few problems: as many as the prefill kernel, often the fastest there, takes. The
// kernel of products of codes takes no more either, and is to be had wherever split-K is not the only one.
constexpr std::int32_t kLeastPrefillTokens = 192;

// kPortable, then the tables of the families.
constexpr auto kVariants = [] {
  std::array<LinearVariant,
             2 + kSplitKVariants.size() + kTileVariants.size() + kPrefillVariants.size() + kFp8Variants.size()>
      all{};
  std::size_t at = 0;
  const auto add = [&](LinearFamily family, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) all[at++] = {family, static_cast<int>(i)};
  };
  add(LinearFamily::kPortable, 1);
  add(LinearFamily::kGemv, 1);
  add(LinearFamily::kSplitK, kSplitKVariants.size());
  add(LinearFamily::kTile, kTileVariants.size());
  add(LinearFamily::kPrefill, kPrefillVariants.size());
  add(LinearFamily::kFp8, kFp8Variants.size());
  return all;
}();

static_assert(std::ranges::all_of(kFp8Variants,
                                  [](const Fp8Variant& v) { return v.tokens <= kMostEncodedItemTokens; }));
static_assert(std::ranges::all_of(kSplitKVariants,
                                  [](const SplitKVariant& v) { return v.tokens <= kMostEncodedItemTokens; }));

Status does_not_fit(LinearVariant variant) {
  return {StatusCode::kUnsupported, "linear: " + name_of(variant) + " does not run these problems"};
}

int row_tiles(const LinearShape& shape) {
  return static_cast<int>(shape.outputs / kRowTile);
}
int segments_of(std::span<const LinearShape> shapes) {
  return tile_segments(*shapes[0].tiles, shapes[0].inputs);
}
int scale_blocks(const LinearShape& shape) {
  return static_cast<int>(shape.inputs / kScaleBlockInputs);
}
// Scale blocks of the longest segment.
int longest_segment(const LinearShape& shape) {
  return ceil_div(scale_blocks(shape), tile_segments(*shape.tiles, shape.inputs));
}
// Whether the gemv kernel's blocks would round so many inputs, each its segment's, that the split-K kernel behind one
// that rounds takes less time: wo_b of V4-Pro with one token 28.6 us for 36.8 (H200).
bool rounds_long_segments(std::span<const LinearShape> shapes) {
  constexpr int kMostBlocks = 16;
  return std::ranges::any_of(shapes, [](const LinearShape& shape) {
    return shape.tiles == TileKind::kFp8Products && longest_segment(shape) > kMostBlocks;
  });
}
// A row tile's in a stage, most of all shapes.
int weight_bytes(std::span<const LinearShape> shapes) {
  int most = 0;
  for (const LinearShape& shape : shapes) most = std::max(most, stage_tile_bytes(*shape.tiles));
  return most;
}

bool all_products(std::span<const LinearShape> shapes) {
  return std::ranges::all_of(shapes, [](const LinearShape& s) { return s.tiles == TileKind::kFp8Products; });
}
bool any_products(std::span<const LinearShape> shapes) {
  return std::ranges::any_of(shapes, [](const LinearShape& s) { return s.tiles == TileKind::kFp8Products; });
}
bool any_widened(std::span<const LinearShape> shapes) {
  return std::ranges::any_of(shapes, [](const LinearShape& s) { return s.tiles == TileKind::kFp8; });
}

int items_of(std::span<const LinearShape> shapes, std::int32_t tokens, int item_tokens, int item_row_tiles) {
  int items = 0;
  for (const LinearShape& shape : shapes) {
    items += ceil_div(row_tiles(shape), item_row_tiles) * ceil_div(tokens, item_tokens);
  }
  return items;
}

LinearPlan plan_portable(std::int32_t tokens, const LinearShape& shape) {
  LinearPlan plan;
  plan.item_tokens = tokens <= 8 ? 8 : tokens <= 32 ? 32 : 64;
  constexpr std::int64_t kOutputs = 16;
  plan.clusters = static_cast<int>(ceil_div(shape.outputs, kOutputs)) * ceil_div(tokens, plan.item_tokens);
  return plan;
}

Result<LinearPlan> plan_gemv(const DeviceFacts& device, std::int32_t tokens, std::span<const LinearShape> shapes,
                             bool normed) {
  LinearPlan plan{.variant = {LinearFamily::kGemv, 0}, .item_tokens = kGemvTokens};
  // It rounds inputs itself.
  const bool encoded = std::ranges::any_of(shapes, [](const LinearShape& shape) { return shape.encoded; });
  if (tokens > kGemvTokens || encoded) return does_not_fit(plan.variant);
  int input_bytes = 0;
  int segment_bytes = 0;  // weights of the longest segment
  for (const LinearShape& shape : shapes) {
    const int longest = longest_segment(shape);
    const bool codes = shape.tiles == TileKind::kFp8Products;
    const int rows = normed ? scale_blocks(shape) : codes ? 0 : longest;
    input_bytes = std::max(input_bytes, gemv_input_bytes(rows, tokens) + (codes ? gemv_code_bytes(longest) : 0));
    segment_bytes = std::max(segment_bytes, longest * stages_per_scale(*shape.tiles) * stage_tile_bytes(*shape.tiles));
  }
  plan.cluster_blocks = segments_of(shapes);
  plan.clusters = items_of(shapes, tokens, kGemvTokens, 1);
  const int other_bytes = kGemvOtherBytes + input_bytes;
  const int blocks = plan.clusters * plan.cluster_blocks;
  for (int per_sm = ring_blocks(blocks, device.multiprocessors, kMostGemvBlocks); per_sm > 0; --per_sm) {
    const int most_ring = (ring_block_bytes(device, per_sm) - other_bytes) / kGemvSlotBytes * kGemvSlotBytes;
    plan.ring_bytes = std::min(most_ring, std::max(segment_bytes, kGemvLeastSlots * kGemvSlotBytes));
    plan.shared_bytes = plan.ring_bytes + other_bytes;
    if (plan.ring_bytes >= kGemvLeastSlots * kGemvSlotBytes) return plan;
  }
  return does_not_fit(plan.variant);
}

Result<LinearPlan> plan_splitk(int number, const DeviceFacts& device, std::int32_t tokens,
                               std::span<const LinearShape> shapes) {
  constexpr int kRingUnit = 1024;  // bytes: swizzled stages begin at multiples of it
  const SplitKVariant& variant = kSplitKVariants.at(static_cast<std::size_t>(number));
  // Five blocks of 96 tokens that share a multiprocessor, or of 64 with stages of 128 inputs, have room for two each.
  constexpr int kMinSlots = 2;
  const int segments = segments_of(shapes);
  LinearPlan plan{.variant = {LinearFamily::kSplitK, number},
                  .item_tokens = variant.tokens,
                  .item_row_tiles = variant.row_tiles,
                  .clusters = items_of(shapes, tokens, variant.tokens, variant.row_tiles),
                  .cluster_blocks = segments / variant.groups};
  if (segments % variant.groups != 0 || (any_products(shapes) && !variant.takes_codes))
    return does_not_fit(plan.variant);
  // All blocks of the kernel that rounds then have a place at once, and this one can begin to fetch weights.
  if (tokens <= kMostSplitKTokens) plan.rounding_blocks = device.multiprocessors;
  const int slot_bytes = variant.row_tiles * weight_bytes(shapes) + variant.box_bytes +
                         (any_products(shapes) ? splitk_scale_bytes(TileKind::kFp8Products) : 0);
  int most_slots = kMinSlots;  // more slots than the longest segment has stages are of no use
  for (const LinearShape& shape : shapes) {
    most_slots = std::max(most_slots, longest_segment(shape) * stages_per_scale(*shape.tiles));
  }
  const std::int64_t blocks = std::int64_t{plan.clusters} * plan.cluster_blocks;
  // Pairs fill the groups that multiprocessors come in.
  const bool fills = segments <= 2 * variant.groups;
  const auto even = static_cast<int>(
      std::clamp<std::int64_t>(ceil_div<std::int64_t>(blocks, device.multiprocessors), 1, variant.blocks_per_sm));
  const int least = std::max(kMinSlots * slot_bytes, round_up(variant.sum_bytes, kRingUnit));
  for (int per_sm = fills ? even : ring_blocks(blocks, device.multiprocessors, variant.blocks_per_sm); per_sm > 0;
       --per_sm) {
    const int most_bytes = ring_block_bytes(device, per_sm);
    const int most_ring = (most_bytes - variant.other_bytes) / variant.groups / kRingUnit * kRingUnit;
    plan.ring_bytes = std::min(most_ring, std::max(most_slots * slot_bytes, least));
    plan.shared_bytes = variant.groups * plan.ring_bytes + variant.other_bytes;
    if (plan.ring_bytes >= least) return plan;
  }
  return does_not_fit(plan.variant);
}

// Of the ring of a resident block.
constexpr int kLeastStages = 3;

// What kTile, kPrefill and kFp8 have in common: one block a multiprocessor, clusters that take item after item.
Result<LinearPlan> plan_resident(LinearPlan plan, const DeviceFacts& device, int at_once, int items, int weights,
                                 int inputs, int other_bytes) {
  plan.shared_bytes = device.block_shared_bytes;
  plan.input_offset = weights;
  plan.stage_bytes = weights + inputs;
  plan.stages = std::min((device.block_shared_bytes - other_bytes) / plan.stage_bytes, kMaxStages);
  plan.clusters = std::min(items, at_once);
  if (at_once == 0 || plan.stages < kLeastStages) return does_not_fit(plan.variant);
  return plan;
}

// Row tiles of the last call that a last round takes one by one, where it has pairs for no more than half of the
// clusters: a pair takes nearly twice as long. Calls must have equally many inputs: then rounds are alike, and a launch
// keeps the order of its calls (describe_problems).
int single_tiles(const LinearPlan& plan, std::int32_t tokens, std::span<const LinearShape> shapes, int items) {
  const bool alike = std::ranges::all_of(
      shapes, [&](const LinearShape& s) { return s.inputs == shapes[0].inputs && s.tiles == shapes[0].tiles; });
  if (plan.item_row_tiles != 2 || plan.clusters == 0 || !alike || shapes.size() == kMaxProblems) return 0;
  const int token_tiles = ceil_div(tokens, plan.item_tokens);
  const int groups = ceil_div(items % plan.clusters, token_tiles);
  const int last = row_tiles(shapes.back());
  const int last_groups = ceil_div(last, 2);
  if (groups == 0 || groups >= last_groups || 2 * groups * token_tiles > plan.clusters) return 0;
  return last - 2 * (last_groups - groups);
}

// What a variant says of its items, TileVariant or Fp8Variant.
template <class Variant>
LinearPlan items_of_variant(LinearFamily family, int number, const Variant& variant) {
  return {.variant = {family, number},
          .item_tokens = variant.tokens,
          .item_row_tiles = variant.row_tiles,
          .cluster_blocks = variant.cluster_blocks};
}

Result<LinearPlan> plan_tiles(int number, const LinearDevice& device, std::int32_t tokens,
                              std::span<const LinearShape> shapes) {
  const auto index = static_cast<std::size_t>(number);
  const TileVariant& variant = kTileVariants.at(index);
  const int segments = segments_of(shapes);
  LinearPlan plan = items_of_variant(LinearFamily::kTile, number, variant);
  const int shares = variant.cluster_blocks * variant.parts;
  if (segments % shares != 0 || any_products(shapes)) return does_not_fit(plan.variant);
  if (!variant.adds_segments && segments > 1) return does_not_fit(plan.variant);
  plan.sum_bytes = variant.parts > 1 ? kPassSlots * pass_chunk_bytes(variant.tokens)
                                     : tile_sum_bytes(variant.tokens, variant.cluster_blocks);
  const int items = items_of(shapes, tokens, variant.tokens, variant.row_tiles);
  DSV4RT_ASSIGN_OR_RETURN(plan, plan_resident(plan, device.facts, device.tile_clusters[index], items,
                                              variant.row_tiles * weight_bytes(shapes), variant.input_bytes,
                                              variant.other_bytes + variant.row_tiles * plan.sum_bytes));
  plan.stages /= variant.parts;
  if (plan.stages < kLeastStages) return does_not_fit(plan.variant);
  plan.single_tiles = single_tiles(plan, tokens, shapes, items);
  return plan;
}

Result<LinearPlan> plan_prefill(int number, const LinearDevice& device, std::int32_t tokens,
                                std::span<const LinearShape> shapes) {
  const auto index = static_cast<std::size_t>(number);
  const PrefillVariant& variant = kPrefillVariants.at(index);
  const LinearPlan plan{.variant = {LinearFamily::kPrefill, number},
                        .item_tokens = variant.tokens,
                        .item_row_tiles = kPrefillRowTiles,
                        .cluster_blocks = kPrefillBlocks};
  if (shapes.size() > kMaxPrefillProblems || any_products(shapes)) return does_not_fit(plan.variant);
  return plan_resident(plan, device.facts, device.prefill_clusters[index],
                       items_of(shapes, tokens, variant.tokens, kPrefillRowTiles),
                       kPrefillBlockTiles * weight_bytes(shapes), variant.input_bytes, variant.other_bytes);
}

Result<LinearPlan> plan_fp8(int number, const LinearDevice& device, std::int32_t tokens,
                            std::span<const LinearShape> shapes) {
  const auto index = static_cast<std::size_t>(number);
  const Fp8Variant& variant = kFp8Variants.at(index);
  const int segments = segments_of(shapes);
  LinearPlan plan = items_of_variant(LinearFamily::kFp8, number, variant);
  const bool takes = all_products(shapes) || (variant.takes_values && !any_widened(shapes));
  if (shapes.size() > kMaxPrefillProblems || !takes) return does_not_fit(plan.variant);
  if (segments % variant.cluster_blocks != 0) return does_not_fit(plan.variant);
  const int items = items_of(shapes, tokens, variant.tokens, variant.row_tiles);
  const int other_bytes = segments > 1 ? variant.segmented_other_bytes : variant.other_bytes;
  DSV4RT_ASSIGN_OR_RETURN(plan,
                          plan_resident(plan, device.facts, device.fp8_clusters[index], items, variant.weight_bytes,
                                        variant.stage_bytes - variant.weight_bytes, other_bytes));
  if (variant.takes_singles && shapes.size() < kMaxPrefillProblems && all_products(shapes)) {
    plan.single_tiles = single_tiles(plan, tokens, shapes, items);
  }
  return plan;
}

// Up to kMostSplitKTokens: as many segments a block as leave blocks for most multiprocessors. Blocks of several
// segments, alone or in pairs, then divide evenly. Clusters of four and more, which single segments need, do not fill
// the groups that multiprocessors come in: on an H200 124 of 132, five segments on some and two on others, and the
// launch ends with those of five.
int choose_splitk(const DeviceFacts& device, std::int32_t tokens, std::span<const LinearShape> shapes) {
  constexpr double kLeastShare = 0.6;  // share of the multiprocessors that must get a block
  const int item_tokens = tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64;
  const int segments = segments_of(shapes);
  int number = 0;
  for (; kSplitKVariants[static_cast<std::size_t>(number)].tokens != item_tokens; ++number) continue;
  // Four, two, one.
  for (; kSplitKVariants[static_cast<std::size_t>(number)].groups > 1; ++number) {
    const int groups = kSplitKVariants[static_cast<std::size_t>(number)].groups;
    const int blocks = items_of(shapes, tokens, item_tokens, 1) * (segments / groups);
    if (segments % groups == 0 && blocks >= kLeastShare * device.multiprocessors) break;
  }
  return number;
}

// From 65 tokens on.
Result<LinearPlan> plan_cheapest(std::span<const LinearCost> costs, const LinearDevice& device, std::int32_t tokens,
                                 std::span<const LinearShape> shapes) {
  Result<LinearPlan> best = Status{StatusCode::kUnsupported, "linear: no kernel runs these problems on this device"};
  double least = 0;
  for (const LinearCost& cost : costs) {
    Result<LinearPlan> plan = plan_variant(cost.variant, device, tokens, shapes);
    if (!plan.ok()) continue;
    const double microseconds = cost_of(cost, *plan, device.facts.multiprocessors, tokens, shapes);
    if (best.ok() && microseconds >= least) continue;
    least = microseconds;
    best = std::move(plan);
  }
  return best;
}

}  // namespace

std::optional<TileKind> tiles_of_shape(bool has_sm90a, WeightEncoding encoding, ActivationRounding activation,
                                       std::int64_t outputs, std::int64_t inputs, LinearPrecision precision) {
  if (!has_sm90a || outputs % kRowTile != 0 || inputs % kScaleBlockInputs != 0) return std::nullopt;
  if (encoding == WeightEncoding::kFp8Block128) {
    return precision == LinearPrecision::kFp8 ? TileKind::kFp8Products : TileKind::kFp8;
  }
  const bool plain = encoding == WeightEncoding::kBf16 && activation == ActivationRounding::kNone;
  return plain ? std::optional(TileKind::kBf16) : std::nullopt;
}

LinearPrecision served_precision(bool has_sm90a, bool has_nvfp4_products, LinearPrecision asked) noexcept {
  const bool served =
      (asked == LinearPrecision::kFp8 && has_sm90a) || (asked == LinearPrecision::kNvfp4 && has_nvfp4_products);
  return served ? asked : LinearPrecision::kExact;
}

Status check_input(const LinearShape& shape, const void* x, std::int64_t x_stride) {
  constexpr int kUnitBytes = 16;  // what copies and wide accesses need as alignment
  if (!shape.tiles) {
    if (shape.inputs % 2 == 0 && x_stride % 2 == 0) return {};
    return {StatusCode::kUnsupported, "linear: " + std::to_string(shape.inputs) + " inputs with stride " +
                                          std::to_string(x_stride) + "; even numbers are accepted"};
  }
  DSV4RT_RETURN_IF_ERROR(
      require_supported(x_stride % 8 == 0, "linear", "x_stride", x_stride, "multiples of 8 for this weight"));
  return require_aligned(x, kUnitBytes, "linear", "x");
}

std::span<const LinearVariant> linear_variants() {
  return kVariants;
}

std::string name_of(LinearVariant variant) {
  const auto number = static_cast<std::size_t>(variant.number);
  std::string name;
  const auto add = [&name](const char* before, int value) { name.append(before).append(std::to_string(value)); };
  switch (variant.family) {
    case LinearFamily::kPortable:
      return "portable";
    case LinearFamily::kGemv:
      return "gemv";
    case LinearFamily::kSplitK: {
      const SplitKVariant& v = kSplitKVariants.at(number);
      add("splitk ", v.tokens);
      v.row_tiles > 1 ? add("r", v.row_tiles) : add("x", v.groups);
      break;
    }
    case LinearFamily::kTile:
      add("tile ", kTileVariants.at(number).row_tiles);
      add("c", kTileVariants.at(number).cluster_blocks);
      if (kTileVariants.at(number).parts > 1) add("k", kTileVariants.at(number).parts);
      if (kTileVariants.at(number).tokens > 128) add("t", kTileVariants.at(number).tokens);
      break;
    case LinearFamily::kPrefill:
      add("prefill ", kPrefillVariants.at(number).tokens);
      break;
    case LinearFamily::kFp8:
      add("fp8 ", kFp8Variants.at(number).tokens);
      if (kFp8Variants.at(number).row_tiles == 1) add("r", 1);
      if (kFp8Variants.at(number).cluster_blocks > 1) add("c", kFp8Variants.at(number).cluster_blocks);
      break;
  }
  return name;
}

Result<LinearPlan> plan_variant(LinearVariant variant, const LinearDevice& device, std::int32_t tokens,
                                std::span<const LinearShape> shapes, bool normed) {
  const bool wgmma_packed = shapes[0].tiles.has_value();
  if (variant.family == LinearFamily::kPortable) {
    if (wgmma_packed || normed) return does_not_fit(variant);
    return plan_portable(tokens, shapes[0]);
  }
  if (!wgmma_packed || !device.facts.has_sm90a) return does_not_fit(variant);
  if (variant.family == LinearFamily::kGemv) return plan_gemv(device.facts, tokens, shapes, normed);
  if (normed) return does_not_fit(variant);
  switch (variant.family) {
    case LinearFamily::kSplitK:
      return plan_splitk(variant.number, device.facts, tokens, shapes);
    case LinearFamily::kTile:
      return plan_tiles(variant.number, device, tokens, shapes);
    case LinearFamily::kFp8:
      return plan_fp8(variant.number, device, tokens, shapes);
    default:
      return plan_prefill(variant.number, device, tokens, shapes);
  }
}

Result<LinearPlan> plan_linear(const LinearDevice& device, std::int32_t tokens, std::span<const LinearShape> shapes,
                               bool normed) {
  const auto plan = [&](LinearFamily family, int number) {
    return plan_variant({family, number}, device, tokens, shapes, normed);
  };
  const bool together = shapes.size() == 1 || std::ranges::all_of(shapes, [&](const LinearShape& shape) {
                          return shapes[0].tiles && shape.tiles && may_share_launch(shapes[0], shape, tokens);
                        });
  if (!together) return Status{StatusCode::kInternal, "linear: these calls do not share a launch"};
  if (!shapes[0].tiles) return plan(LinearFamily::kPortable, 0);
  if (normed || (tokens <= kMostGemvTokens && !rounds_long_segments(shapes))) {
    Result<LinearPlan> gemv = plan(LinearFamily::kGemv, 0);
    if (gemv.ok() || normed) return gemv;
  }
  if (tokens <= kMostSplitKTokens) return plan(LinearFamily::kSplitK, choose_splitk(device.facts, tokens, shapes));
  if (all_products(shapes)) return plan_cheapest(kFp8Costs, device, tokens, shapes);
  if (any_products(shapes)) return plan_cheapest(kMixedCosts, device, tokens, shapes);
  return plan_cheapest(kLinearCosts, device, tokens, shapes);
}

std::int32_t even_item_tokens(const LinearPlan& plan, std::int32_t tokens) {
  constexpr std::int32_t kUnit = 8;  // scales of so many are aligned for the copy engine
  if (tokens <= plan.item_tokens) return tokens;
  return round_up(ceil_div(tokens, ceil_div(tokens, plan.item_tokens)), kUnit);
}

bool encodes_outputs(const LinearPlan& plan, const LinearShape& shape) {
  return plan.variant.family == LinearFamily::kFp8 && shape.outputs % kEncodedBlockValues == 0 &&
         kFp8Variants.at(static_cast<std::size_t>(plan.variant.number)).encodes;
}

bool may_share_launch(const LinearShape& a, const LinearShape& b, std::int32_t tokens) {
  const auto products = [](const LinearShape& shape) { return shape.tiles == TileKind::kFp8Products; };
  if (tokens > kMostMixedTokens && products(a) != products(b)) return false;
  return tile_segments(*a.tiles, a.inputs) == tile_segments(*b.tiles, b.inputs);
}
int most_problems(std::int32_t tokens, bool products) {
  const bool few = tokens >= kLeastPrefillTokens || (products && tokens > kMostSplitKTokens);
  return few ? kMaxPrefillProblems : kMaxProblems;
}
std::int32_t most_norm_tokens() {
  return kMostGemvTokens;
}
std::int32_t least_encoded_tokens() {
  return kMostGemvTokens + 1;
}
std::int32_t most_one_wave_tokens() {
  return kMostSplitKTokens;
}

}  // namespace dsv4rt::cuda
