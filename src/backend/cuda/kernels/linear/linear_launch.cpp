#include "backend/cuda/kernels/linear/linear_launch.h"

#include <algorithm>
#include <span>
#include <string>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/linear/gemv/gemv_launch.h"
#include "backend/cuda/kernels/linear/prefill/prefill_variant.h"
#include "backend/cuda/kernels/linear/shared/round_input.h"
#include "backend/cuda/kernels/linear/splitk/splitk_plan.h"
#include "backend/cuda/kernels/linear/tile/tile_variant.h"
#include "backend/cuda/kernels/norm/rounded_norm.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

// Up to kGemvTokens the gemv kernel can, but with more than these the split-K kernel behind one that rounds takes
// less time: 3.3 to 3.4 ms a step of V4-Flash with five to eight sequences, not 3.9.
constexpr int kMostGemvTokens = 4;

constexpr int kUnitBytes = 16;  // what copies and wide accesses need as alignment

const CudaPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CudaPackedLinear&>(*call.weight);
}

bool same_input(const LinearCall& a, const LinearCall& b) {
  return a.x == b.x && a.x_stride == b.x_stride && a.weight->in_features() == b.weight->in_features();
}

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kUnitBytes == 0;
}

// Items and their stages for blocks of a variant, over all problems of a launch.
struct Work {
  std::int64_t items = 0;
  std::int64_t stages = 0;       // of all items
  std::int64_t most_stages = 0;  // of an item
  int weight_bytes = 0;          // of a row tile in a stage
  bool bf16 = false;             // some weights are of this kind
  bool fp8 = false;              // of this one
};

Work work_of(std::span<const LinearCall* const> calls, std::int32_t tokens, int item_tokens, int item_tiles) {
  Work work;
  for (const LinearCall* call : calls) {
    const CudaPackedLinear& weight = packed(*call);
    const std::int64_t stages = weight.in_features() / kStageInputs;
    const std::int64_t items =
        ceil_div<std::int64_t>(weight.out_features(), kRowTile * item_tiles) * ceil_div(tokens, item_tokens);
    work.items += items;
    work.stages += items * stages;
    work.most_stages = std::max(work.most_stages, stages);
    work.weight_bytes = std::max(work.weight_bytes, stage_tile_bytes(weight.tile_kind()));
    (weight.tile_kind() == TileKind::kFp8 ? work.fp8 : work.bf16) = true;
  }
  return work;
}

// A variant, how to launch it, and the clocks that its busiest SM is estimated to take.
struct Plan {
  const TileVariant* variant = nullptr;
  const PrefillVariant* pair = nullptr;  // one of both
  int cluster_blocks = 1;
  int clusters = 0;  // 0: no plan yet
  int shared_bytes = 0;
  int stages = 0;  // of the ring
  double clocks = 0;
};

// Of the busiest of so many clusters. All items alike: whole rounds. Otherwise the order of items evens out what it
// can.
double busiest_stages(const Work& work, std::int64_t clusters) {
  if (work.stages == work.items * work.most_stages) {
    return static_cast<double>(ceil_div(work.items, clusters) * work.most_stages);
  }
  return std::max(static_cast<double>(work.most_stages),
                  static_cast<double>(work.stages) / static_cast<double>(clusters));
}

// Results do not depend on the plan: only on how often inputs and weights are read and on how many SMs work.
void consider(Plan& best, const TileVariant& variant, const TileResidency& device, int cluster, const Work& work,
              int segments) {
  constexpr double kSharedBytesPerClock = 120;  // that copies write and matrix instructions and consumers read
  constexpr double kWideClocks = 220;           // of a stage whose weights are widened, besides
  constexpr double kItemClocks = 2000;          // between the last stage and the next item's first
  constexpr double kExchangeClocks = 900;       // the same in a cluster, besides, for each of its blocks
  constexpr int kMinStages = 3;
  const int blocks = kTileClusters[cluster];
  const int resident = device.clusters[cluster];
  if (resident == 0 || segments % blocks != 0) return;
  const int stage_bytes = variant.row_tiles * work.weight_bytes + variant.input_bytes;
  const int fixed_bytes = variant.other_bytes + variant.row_tiles * variant.sum_bytes(segments, blocks);
  const int stages = std::min((device.shared_bytes - fixed_bytes) / stage_bytes, kMaxStages);
  if (stages < kMinStages) return;

  const std::int64_t clusters = std::min<std::int64_t>(work.items, resident);
  const auto stage_clocks = [&](TileKind kind) {
    const int weight_bytes = stage_tile_bytes(kind);
    const int shared = variant.input_bytes + variant.row_tiles * (2 * weight_bytes + variant.input_bytes);
    return shared / kSharedBytesPerClock + (kind == TileKind::kFp8 ? kWideClocks : 0);
  };
  const double rounds = static_cast<double>(ceil_div(work.items, clusters));
  const double clocks =
      rounds * (kItemClocks + (blocks > 1 ? blocks * kExchangeClocks : 0)) +
      busiest_stages(work, clusters) / blocks *
          std::max(work.bf16 ? stage_clocks(TileKind::kBf16) : 0, work.fp8 ? stage_clocks(TileKind::kFp8) : 0);
  if (best.clusters > 0 && clocks >= best.clocks) return;
  best = {.variant = &variant,
          .cluster_blocks = blocks,
          .clusters = static_cast<int>(clusters),
          .shared_bytes = device.shared_bytes,
          .stages = stages,
          .clocks = clocks};
}

// The prefill kernel, whose products overlap with everything else; clocks to compare with those above.
void consider_pairs(Plan& best, const PrefillVariant& variant, const PrefillDevice& device, const Work& work) {
  constexpr double kBytesPerClock = 45;
  const double kStageClocks = 4.5 * variant.tokens;
  constexpr double kItemClocks = 800;
  constexpr int kMinStages = 3;
  const int stage_bytes = kPrefillBlockTiles * work.weight_bytes + variant.input_bytes;
  const int stages = std::min((device.shared_bytes - variant.other_bytes) / stage_bytes, kMaxStages);
  if (device.pairs == 0 || stages < kMinStages) return;
  const std::int64_t pairs = std::min<std::int64_t>(work.items, device.pairs);
  const double stage_clocks = std::max(kStageClocks, (stage_bytes - variant.input_bytes / 2) / kBytesPerClock);
  const double clocks =
      static_cast<double>(ceil_div(work.items, pairs)) * kItemClocks + busiest_stages(work, pairs) * stage_clocks;
  if (best.clusters > 0 && clocks >= best.clocks) return;
  best = {.pair = &variant,
          .cluster_blocks = kPrefillBlocks,
          .clusters = static_cast<int>(pairs),
          .shared_bytes = device.shared_bytes,
          .stages = stages,
          .clocks = clocks};
}

Result<Plan> plan_launch(std::span<const LinearCall* const> calls, std::int32_t tokens, int segments,
                         const ForcedFamily& forced) {
  using Family = ForcedFamily::Family;
  // Two row tiles a block read inputs half as often.
  const TileVariant* const candidates[] = {&tile_variant<128, 2>(), &tile_variant<128, 1>()};
  Plan best;
  for (const TileVariant* variant : candidates) {
    if (forced.family == Family::kPrefill) break;
    if (forced.row_tiles > 0 && variant->row_tiles != forced.row_tiles) continue;
    const Result<TileResidency>& device = variant->residency();
    if (!device.ok()) return device.status();
    const Work work = work_of(calls, tokens, variant->tokens, variant->row_tiles);
    for (int i = 0; i < kTileClusterCount; ++i) {
      if (forced.split > 0 && kTileClusters[i] != forced.split) continue;
      consider(best, *variant, *device, i, work, segments);
    }
  }
  for (const PrefillVariant* variant : {&prefill_variant<192>(), &prefill_variant<128>()}) {
    if (calls.size() > kMaxPrefillProblems || forced.family == Family::kTile) break;
    if (forced.family == Family::kAny && variant->tokens == 128) break;
    if (forced.tokens > 0 && variant->tokens != forced.tokens) continue;
    const Result<PrefillDevice>& device = variant->device();
    if (!device.ok()) return device.status();
    consider_pairs(best, *variant, *device, work_of(calls, tokens, variant->tokens, kPrefillRowTiles));
  }
  if (best.clusters == 0) return Status{StatusCode::kInternal, "linear: no tile variant fits this device"};
  return best;
}

// y as the prefill kernel's stores see it: BF16, or pairs of bytes of FP32.
Status output_map(CUtensorMap& map, const PrefillVariant& variant, const LinearCall& call, std::int32_t tokens) {
  const bool floats = call.output == OutputType::kF32;
  const std::int64_t pairs = floats ? 2 : 1;  // of bytes, of a value
  return encode_row_map({.data = call.y,
                         .value_bytes = 2,
                         .columns = call.weight->out_features() * pairs,
                         .rows = tokens,
                         .row_bytes = call.y_stride * pairs * 2,
                         .box_columns = kStageInputs,
                         .box_rows = variant.box_tokens(floats)},
                        map);
}

// [T][K] BF16 values, boxes of one stage.
Status input_map(CUtensorMap& map, const void* data, std::int64_t inputs, std::int64_t stride, std::int32_t tokens,
                 int box_tokens) {
  constexpr int kValueBytes = sizeof(bf16);
  return encode_row_map({.data = data,
                         .value_bytes = kValueBytes,
                         .columns = inputs,
                         .rows = tokens,
                         .row_bytes = stride * kValueBytes,
                         .box_columns = kStageInputs,
                         .box_rows = box_tokens},
                        map);
}

// `tiles` describes the problems but for what depends on the kernel.
Status run_pairs(const LinearParams& tiles, std::span<const LinearCall* const> calls, const Plan& plan,
                 int weight_bytes, cudaStream_t stream) {
  PrefillParams params{};
  std::copy_n(tiles.inputs, kMaxPrefillProblems, params.inputs);
  std::copy_n(tiles.problems, kMaxPrefillProblems, params.problems);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (params.problems[i].wide_stores)
      DSV4RT_RETURN_IF_ERROR(output_map(params.outputs[i], *plan.pair, *calls[i], tiles.tokens));
  }
  params.tokens = tiles.tokens;
  params.token_tiles = tiles.token_tiles;
  params.problem_count = tiles.problem_count;
  params.items = tiles.items;
  params.segments = tiles.segments;
  params.stages = plan.stages;
  params.input_offset = kPrefillBlockTiles * weight_bytes;
  params.stage_bytes = params.input_offset + plan.pair->input_bytes;
  return plan.pair->launch(params, plan.clusters, plan.shared_bytes, stream);
}

// The problems of a launch but for their inputs. Calls with most to read first: the tail of the launch is then made of
// short items.
void describe_problems(LinearParams& params, std::span<const LinearCall*> calls, std::int32_t tokens, int item_tokens,
                       int item_tiles) {
  std::stable_sort(calls.begin(), calls.end(), [](const LinearCall* a, const LinearCall* b) {
    const auto row_bytes = [](const LinearCall* call) {
      return call->weight->in_features() * stage_tile_bytes(packed(*call).tile_kind());
    };
    return row_bytes(a) > row_bytes(b);
  });
  params.tokens = tokens;
  params.token_tiles = ceil_div(tokens, item_tokens);
  params.segments = packed(*calls[0]).segments();
  params.problem_count = static_cast<std::int32_t>(calls.size());
  LinearProblem* problem = params.problems;
  for (const LinearCall* call : calls) {
    const CudaPackedLinear& weight = packed(*call);
    problem->codes = weight.codes();
    problem->scales = reinterpret_cast<const float*>(weight.scales());
    problem->y = call->y;
    problem->y_stride = call->y_stride;
    problem->row_tiles = static_cast<std::int32_t>(weight.out_features() / kRowTile);
    problem->row_groups = ceil_div(problem->row_tiles, item_tiles);
    problem->scale_blocks = static_cast<std::int32_t>(weight.in_features() / kScaleBlockInputs);
    problem->first_item = params.items;
    problem->kind = weight.tile_kind();
    problem->float_output = call->output == OutputType::kF32;
    problem->wide_stores = aligned(call->y) && call->y_stride % 8 == 0;
    params.items += problem->row_groups * params.token_tiles;
    ++problem;
  }
}

// Inputs as they are, for blocks that bring and round them themselves.
void set_rows(LinearParams& params, std::span<const LinearCall* const> calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    params.problems[i].input = static_cast<std::int16_t>(i);
    params.rows[i] = {.x = calls[i]->x,
                      .x_stride = calls[i]->x_stride,
                      .rounds = packed(*calls[i]).activation() == ActivationRounding::kFp8Block128};
  }
}

}  // namespace

Status LinearLauncher::add(const LinearCall& call) {
  DSV4RT_RETURN_IF_ERROR(
      require_supported(call.x_stride % 8 == 0, "linear", "x_stride", call.x_stride, "multiples of 8 for this weight"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(call.x, kUnitBytes, "linear", "x"));
  const CudaPackedLinear& weight = packed(call);
  const bool rounds = weight.activation() == ActivationRounding::kFp8Block128;
  const bool other_input = rounds && rounded_ != nullptr && !same_input(*rounded_, call);
  constexpr int kLeastPairTokens = 192;
  const int most = tokens_ < kLeastPairTokens && forced_.family != ForcedFamily::Family::kPrefill ? kMaxProblems
                                                                                                  : kMaxPrefillProblems;
  if (count_ == most || other_input || (count_ > 0 && packed(*calls_[0]).segments() != weight.segments())) {
    DSV4RT_RETURN_IF_ERROR(flush());
  }
  if (rounds && rounded_ == nullptr) rounded_ = &call;
  calls_[static_cast<std::size_t>(count_++)] = &call;
  return {};
}

Status LinearLauncher::flush() {
  return run_added(nullptr);
}

Status LinearLauncher::run_added(const RmsNormParams* norm) {
  if (count_ == 0) return {};
  const auto calls = std::span(calls_).first(static_cast<std::size_t>(count_));
  const LinearCall* const rounded = rounded_;
  count_ = 0;
  rounded_ = nullptr;

  if (tokens_ <= kMostGemvTokens) {
    DSV4RT_ASSIGN_OR_RETURN(const GemvPlan narrow, plan_gemv(calls, tokens_, false));
    if (narrow.shared_bytes > 0) return run_gemv(calls, narrow, {});
  }
  const bool few = forced_.family == ForcedFamily::Family::kAny ? tokens_ <= kMostSplitKTokens
                                                                : forced_.family == ForcedFamily::Family::kSegment;
  Plan plan;
  SplitKPlan splitk_plan;
  if (few) {
    DSV4RT_ASSIGN_OR_RETURN(splitk_plan, plan_splitk(calls, tokens_, forced_.tokens, forced_.row_tiles, forced_.split));
  } else {
    DSV4RT_ASSIGN_OR_RETURN(plan, plan_launch(calls, tokens_, packed(*calls[0]).segments(), forced_));
  }
  const bool pairs = !few && plan.pair != nullptr;
  const int item_tokens = few ? splitk_plan.variant->tokens : pairs ? plan.pair->tokens : plan.variant->tokens;
  const int item_tiles = few ? splitk_plan.variant->row_tiles : pairs ? kPrefillRowTiles : plan.variant->row_tiles;
  LinearParams params{};
  describe_problems(params, calls, tokens_, item_tokens, item_tiles);
  DSV4RT_RETURN_IF_ERROR(set_maps(params, calls, rounded, norm, pairs ? plan.pair->share_tokens : item_tokens));
  if (few) {
    params.ring_bytes = splitk_plan.ring_bytes;
    return splitk_plan.variant->launch(params, splitk_plan.shared_bytes, stream_);
  }
  int weight_bytes = 0;
  for (const LinearCall* call : calls) {
    weight_bytes = std::max(weight_bytes, stage_tile_bytes(packed(*call).tile_kind()));
  }
  if (pairs) return run_pairs(params, calls, plan, weight_bytes, stream_);
  params.input_offset = item_tiles * weight_bytes;
  params.stage_bytes = params.input_offset + plan.variant->input_bytes;
  params.stages = plan.stages;
  params.sum_bytes = plan.variant->sum_bytes(params.segments, plan.cluster_blocks);
  return plan.variant->launch(params, plan.clusters, plan.cluster_blocks, plan.shared_bytes, stream_);
}

Status LinearLauncher::run_gemv(std::span<const LinearCall*> calls, const GemvPlan& plan, const InputNorm& norm) {
  LinearParams params{};
  describe_problems(params, calls, tokens_, kGemvTokens, 1);
  set_rows(params, calls);
  params.norm = norm;
  params.ring_bytes = plan.ring_bytes;
  return launch_gemv(params, plan, stream_);
}

Result<bool> LinearLauncher::run_normed(const RmsNormParams& norm, std::span<const LinearCall> calls) {
  if (calls.empty() || calls.size() > kMaxPrefillProblems || !rounds_behind_norm(norm)) return false;
  if (tokens_ > kMostGemvTokens) {
    for (const LinearCall& call : calls) {
      if (packed(call).activation() != ActivationRounding::kFp8Block128) return false;
    }
    for (const LinearCall& call : calls) calls_[static_cast<std::size_t>(count_++)] = &call;
    rounded_ = &calls[0];
    DSV4RT_RETURN_IF_ERROR(run_added(&norm));
    return true;
  }
  std::array<LinearCall, kMaxProblems> on_x;
  std::array<const LinearCall*, kMaxProblems> pointers{};
  for (std::size_t i = 0; i < calls.size(); ++i) {
    on_x[i] = calls[i];
    on_x[i].x = norm.x;
    on_x[i].x_stride = norm.width;
    pointers[i] = &on_x[i];
  }
  const auto all = std::span(pointers).first(calls.size());
  DSV4RT_ASSIGN_OR_RETURN(const GemvPlan plan, plan_gemv(all, tokens_, true));
  if (plan.shared_bytes == 0) return false;
  DSV4RT_RETURN_IF_ERROR(run_gemv(all, plan, {.weight = norm.weight, .eps = norm.eps}));
  return true;
}

// Rounded and plain inputs as the copy engine reads them, `box_tokens` tokens at a time. norm, if any, makes the
// rounded ones.
Status LinearLauncher::set_maps(LinearParams& params, std::span<const LinearCall* const> calls,
                                const LinearCall* rounded, const RmsNormParams* norm, int box_tokens) {
  int inputs = 0;
  int rounded_input = -1;
  if (rounded != nullptr) {
    const std::int64_t width = rounded->weight->in_features();
    const std::int64_t bytes = tokens_ * width * std::int64_t{sizeof(bf16)};
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch_.take(static_cast<std::size_t>(bytes), "linear"));
    auto* const rows = reinterpret_cast<bf16*>(memory);
    if (norm != nullptr) {
      RmsNormParams rounding = *norm;
      rounding.y = rows;
      DSV4RT_RETURN_IF_ERROR(rounded_rms_norm(rounding, stream_));
    } else {
      DSV4RT_RETURN_IF_ERROR(round_input({.x = rounded->x,
                                          .x_stride = rounded->x_stride,
                                          .rounded = rows,
                                          .tokens = tokens_,
                                          .blocks = static_cast<std::int32_t>(width / kScaleBlockInputs)},
                                         stream_));
    }
    rounded_input = inputs++;
    DSV4RT_RETURN_IF_ERROR(input_map(params.inputs[rounded_input], memory, width, width, tokens_, box_tokens));
  }
  const LinearCall* mapped = nullptr;  // the call whose BF16 input the last map describes
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const LinearCall& call = *calls[i];
    if (packed(call).activation() == ActivationRounding::kFp8Block128) {
      params.problems[i].input = static_cast<std::int16_t>(rounded_input);
      continue;
    }
    if (mapped == nullptr || !same_input(*mapped, call)) {
      if (inputs == kMaxProblems) return {StatusCode::kInternal, "linear: more inputs than tensor maps"};
      DSV4RT_RETURN_IF_ERROR(
          input_map(params.inputs[inputs++], call.x, call.weight->in_features(), call.x_stride, tokens_, box_tokens));
      mapped = &call;
    }
    params.problems[i].input = static_cast<std::int16_t>(inputs - 1);
  }
  return {};
}

}  // namespace dsv4rt::cuda
