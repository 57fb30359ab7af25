#include "backend/cuda/kernels/linear/linear_launch.h"

#include <algorithm>
#include <limits>
#include <string>

#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/linear/fp8/fp8_launch.h"
#include "backend/cuda/kernels/linear/gemv/gemv_launch.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/prefill/prefill_launch.h"
#include "backend/cuda/kernels/linear/shared/encode_input.h"
#include "backend/cuda/kernels/linear/shared/round_input.h"
#include "backend/cuda/kernels/linear/splitk/splitk_launch.h"
#include "backend/cuda/kernels/linear/tile/tile_launch.h"
#include "backend/cuda/kernels/norm/rounded_norm.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

const CudaPackedLinear& packed(const LinearCall& call) {
  return static_cast<const CudaPackedLinear&>(*call.weight);
}

bool same_rows(const EncodedRows& a, const EncodedRows& b) {
  return a.codes == b.codes && a.scales == b.scales && a.width == b.width && a.scale_stride == b.scale_stride;
}

// Calls that are encoded read one input if it is one row of codes that they read parts of.
bool same_input(const LinearCall& a, const LinearCall& b) {
  if (a.encoded || b.encoded) return a.encoded && b.encoded && same_rows(*a.encoded, *b.encoded);
  return a.x == b.x && a.x_stride == b.x_stride && a.weight->in_features() == b.weight->in_features();
}

bool multiplies_codes(const LinearCall& call) {
  return packed(call).wgmma_packed() && packed(call).tile_kind() == TileKind::kFp8Products;
}

// Codes round inputs of weights, too, whose own rule does not.
bool rounds(const LinearCall& call) {
  return packed(call).activation() == ActivationRounding::kFp8Block128 || multiplies_codes(call);
}

int segments_of(const LinearCall& call) {
  return tile_segments(packed(call).tile_kind(), call.weight->in_features());
}

bool aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

// y as the resident kernels' stores see it: BF16, or pairs of bytes of FP32.
Status output_map(CUtensorMap& map, const LinearProblem& problem, std::int32_t tokens, int box_tokens) {
  const std::int64_t pairs = problem.float_output ? 2 : 1;  // pairs of bytes in a value
  return encode_row_map({.data = problem.y,
                         .value_bytes = 2,
                         .columns = std::int64_t{problem.row_tiles} * kRowTile * pairs,
                         .rows = tokens,
                         .row_bytes = problem.y_stride * pairs * 2,
                         .box_columns = kStageInputs,
                         .box_rows = box_tokens},
                        map);
}

// Codes of a call's outputs, boxes of a block of 128.
Status encoded_output_map(CUtensorMap& map, const LinearCall& call, std::int32_t tokens) {
  const EncodedRows& rows = *call.encoded_y;
  return encode_row_map({.data = rows.codes + call.encoded_y_column,
                         .value_bytes = 1,
                         .columns = call.weight->out_features(),
                         .rows = tokens,
                         .row_bytes = rows.width,
                         .box_columns = kEncodedBlockValues,
                         .box_rows = kFp8GroupTokens},
                        map);
}

// The problems of a launch but for their inputs. Calls with most to read first: the tail of the launch is then made of
// short items.
void describe_problems(LinearParams& params, std::span<const LinearCall*> calls, std::int32_t tokens, int item_tokens,
                       int item_tiles) {
  std::stable_sort(calls.begin(), calls.end(), [](const LinearCall* a, const LinearCall* b) {
    const auto row_bytes = [](const LinearCall* call) {
      const TileKind kind = packed(*call).tile_kind();
      return call->weight->in_features() * stages_per_scale(kind) * stage_tile_bytes(kind);
    };
    return row_bytes(a) > row_bytes(b);
  });
  params.tokens = tokens;
  params.token_tiles = ceil_div(tokens, item_tokens);
  params.segments = segments_of(*calls[0]);
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
    problem->item_tiles = item_tiles;
    problem->scale_blocks = static_cast<std::int32_t>(weight.in_features() / kScaleBlockInputs);
    params.first_item.of[problem - params.problems] = params.items;
    problem->kind = weight.tile_kind();
    problem->float_output = call->output == OutputType::kF32;
    problem->wide_stores = aligned(call->y) && call->y_stride % 8 == 0;
    params.items += problem->row_groups * params.token_tiles;
    ++problem;
  }
}

// Makes items of one row tile each of the last problem's last ones.
void split_last_problem(LinearParams& params, int row_tiles) {
  if (row_tiles == 0) return;
  const int number = params.problem_count++;
  LinearProblem& most = params.problems[number - 1];
  LinearProblem& rest = params.problems[number];
  rest = most;
  most.row_tiles -= row_tiles;
  params.items += (most.row_tiles / most.item_tiles - most.row_groups + row_tiles) * params.token_tiles;
  most.row_groups = most.row_tiles / most.item_tiles;
  params.first_item.of[number] = params.first_item.of[number - 1] + most.row_groups * params.token_tiles;
  rest.row_tiles = rest.row_groups = row_tiles;
  rest.item_tiles = 1;
  rest.codes +=
      std::int64_t{most.row_tiles} * most.scale_blocks * stages_per_scale(most.kind) * stage_tile_bytes(most.kind);
  if (rest.scales != nullptr) rest.scales += std::int64_t{most.row_tiles} * most.scale_blocks;
  const std::int64_t first_bytes = std::int64_t{most.row_tiles} * kRowTile * (most.float_output ? 4 : 2);
  rest.y = static_cast<std::byte*>(rest.y) + first_bytes;
}

// kTile: lets the copy engine store what it can, so that warpgroups go on with the next item.
Status box_outputs(LinearParams& params, const LinearPlan& plan) {
  if (kTileVariants.at(static_cast<std::size_t>(plan.variant.number)).parts > 1) return {};
  for (int i = 0; i < std::min(params.problem_count, kMaxBoxedOutputs); ++i) {
    LinearProblem& problem = params.problems[i];
    if (problem.float_output || !problem.wide_stores) continue;
    problem.boxed_output = true;
    DSV4RT_RETURN_IF_ERROR(encode_row_map({.data = problem.y,
                                           .value_bytes = 2,
                                           .columns = std::int64_t{problem.row_tiles} * kRowTile,
                                           .rows = params.tokens,
                                           .row_bytes = problem.y_stride * 2,
                                           .box_columns = kRowTile,
                                           .box_rows = params.item_tokens},
                                          params.outputs[i]));
  }
  return {};
}

// Inputs as they are, for blocks that bring and round them themselves.
void set_rows(LinearParams& params, std::span<const LinearCall* const> calls) {
  for (std::size_t i = 0; i < calls.size(); ++i) {
    params.problems[i].input = static_cast<std::int16_t>(i);
    params.rows[i] = {.x = calls[i]->x, .x_stride = calls[i]->x_stride, .rounds = rounds(*calls[i])};
  }
}

}  // namespace

LinearShape shape_of(const LinearCall& call) {
  const CudaPackedLinear& weight = packed(call);
  LinearShape shape{.outputs = weight.out_features(), .inputs = weight.in_features()};
  if (weight.wgmma_packed()) shape.tiles = weight.tile_kind();
  shape.rounds = rounds(call);
  shape.encoded = call.encoded.has_value();
  return shape;
}

bool takes_encoded_rows(std::int32_t tokens, const CudaPackedLinear& weight) {
  return tokens >= least_encoded_tokens() && weight.wgmma_packed() && weight.tile_kind() == TileKind::kFp8Products;
}

Result<LinearDevice> linear_device(const CudaDevice& device, std::int32_t tokens) {
  LinearDevice asked{.facts = device.facts()};
  if (tokens <= most_one_wave_tokens()) return asked;
  DSV4RT_RETURN_IF_ERROR(ask_tile_clusters(device, asked.tile_clusters));
  DSV4RT_RETURN_IF_ERROR(ask_prefill_clusters(device, asked.prefill_clusters));
  DSV4RT_RETURN_IF_ERROR(ask_fp8_clusters(device, asked.fp8_clusters));
  return asked;
}

int LinearLauncher::most_launch_calls(bool products) const {
  const bool few = forced_ && (forced_->family == LinearFamily::kPrefill || forced_->family == LinearFamily::kFp8);
  return few ? kMaxPrefillProblems : most_problems(tokens_, products);
}

// Calls of one shape and one input share launches, as many as fit.
Result<bool> LinearLauncher::encodes_outputs(std::span<const LinearCall> calls) const {
  if (calls.empty()) return false;
  const auto most = static_cast<std::size_t>(most_launch_calls(multiplies_codes(calls[0])));
  for (std::size_t first = 0; first < calls.size(); first += most) {
    std::array<const LinearCall*, kMaxProblems> launch{};
    const auto part = calls.subspan(first, std::min(most, calls.size() - first));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const LinearCall& call = part[i];
      const bool alike = same_input(calls[0], call) && call.weight->in_features() == calls[0].weight->in_features() &&
                         call.weight->out_features() == calls[0].weight->out_features();
      if (!call.encoded || !takes_encoded_rows(tokens_, packed(call)) || !alike) return false;
      launch[i] = &call;
    }
    DSV4RT_ASSIGN_OR_RETURN(const LinearPlan planned, plan(std::span(launch).first(part.size()), false));
    if (!cuda::encodes_outputs(planned, shape_of(calls[0]))) return false;
  }
  return true;
}

Result<LinearPlan> LinearLauncher::plan(std::span<const LinearCall* const> calls, bool normed) const {
  std::array<LinearShape, kMaxProblems> described;
  for (std::size_t i = 0; i < calls.size(); ++i) described[i] = shape_of(*calls[i]);
  const auto shapes = std::span(described).first(calls.size());
  // A forced variant may ask for what its tokens alone would not.
  constexpr std::int32_t kAll = std::numeric_limits<std::int32_t>::max();
  DSV4RT_ASSIGN_OR_RETURN(const LinearDevice asked, linear_device(device_, forced_ ? kAll : tokens_));
  return forced_ ? plan_variant(*forced_, asked, tokens_, shapes, normed) : plan_linear(asked, tokens_, shapes, normed);
}

Status LinearLauncher::add(const LinearCall& call) {
  const LinearShape shape = shape_of(call);
  if (!shape.tiles) return {StatusCode::kUnsupported, "linear: weights packed in lanes do not share launches"};
  if (!call.encoded) DSV4RT_RETURN_IF_ERROR(check_input(shape, call.x, call.x_stride));
  const bool codes = shape.tiles == TileKind::kFp8Products;
  const bool other_input =
      shape.rounds && rounded_ != nullptr && (!same_input(*rounded_, call) || multiplies_codes(*rounded_) != codes);
  const auto added = std::span(calls_).first(static_cast<std::size_t>(count_));
  const int most = most_launch_calls(
      codes || std::ranges::any_of(added, [](const LinearCall* other) { return multiplies_codes(*other); }));
  const auto leave_codes_alike = [](const LinearCall& a, const LinearCall& b) {
    return !a.encoded_y || !b.encoded_y || same_rows(*a.encoded_y, *b.encoded_y);
  };
  const bool other_launch =
      count_ > 0 && (!may_share_launch(shape_of(*calls_[0]), shape, tokens_) || !leave_codes_alike(*calls_[0], call));
  // Calls of so few tokens have values: the products' kernel rounds every call's own input, or run_each() has them one
  // by one.
  const bool rounds_each = tokens_ < least_encoded_tokens() && !forced_;
  if (count_ >= most || (other_input && !rounds_each) || other_launch) DSV4RT_RETURN_IF_ERROR(flush());
  several_rounded_ = several_rounded_ || (count_ > 0 && other_input);
  if (shape.rounds && rounded_ == nullptr) rounded_ = &call;
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
  const bool several_rounded = several_rounded_;
  count_ = 0;
  rounded_ = nullptr;
  several_rounded_ = false;

  DSV4RT_ASSIGN_OR_RETURN(const LinearPlan planned, plan(calls, false));
  for (const LinearCall* call : calls) {
    if (call->encoded_y && !cuda::encodes_outputs(planned, shape_of(*call))) {
      return {StatusCode::kUnsupported, "linear: " + name_of(planned.variant) + " does not encode these outputs"};
    }
  }
  if (planned.variant.family == LinearFamily::kGemv) return run_gemv(calls, planned, {});
  if (several_rounded) return run_each(calls);
  LinearParams params{};
  describe_problems(params, calls, tokens_, planned.item_tokens, planned.item_row_tiles);
  DSV4RT_ASSIGN_OR_RETURN(const Inputs inputs, set_inputs(params, calls, rounded, norm, planned));
  // A single row tile is half of a block of codes.
  if (!calls.back()->encoded_y) split_last_problem(params, planned.single_tiles);
  if (planned.variant.family == LinearFamily::kPrefill || planned.variant.family == LinearFamily::kFp8) {
    return run_resident(params, calls, inputs, planned);
  }
  params.item_tokens = even_item_tokens(planned, tokens_);
  DSV4RT_RETURN_IF_ERROR(map_inputs(params.inputs, inputs, params.item_tokens));
  params.ring_bytes = planned.ring_bytes;
  if (planned.variant.family == LinearFamily::kSplitK) return launch_splitk(device_, params, planned, stream_);
  params.input_offset = planned.input_offset;
  params.stage_bytes = planned.stage_bytes;
  params.stages = planned.stages;
  params.sum_bytes = planned.sum_bytes;
  DSV4RT_RETURN_IF_ERROR(box_outputs(params, planned));
  return launch_tiles(device_, params, planned, stream_);
}

// kPrefill and kFp8: `described` but for what depends on the kernel.
Status LinearLauncher::run_resident(const LinearParams& described, std::span<const LinearCall* const> calls,
                                    const Inputs& inputs, const LinearPlan& plan) {
  const bool fp8 = plan.variant.family == LinearFamily::kFp8;
  PrefillParams params{};
  std::copy_n(described.problems, kMaxPrefillProblems, params.problems);
  // Behind the calls there may be another problem, the last row tiles of the last one (split_last_problem).
  for (std::size_t i = 0; i < static_cast<std::size_t>(described.problem_count); ++i) {
    if (i < calls.size() && calls[i]->encoded_y) {
      const EncodedRows& rows = *calls[i]->encoded_y;
      params.output_scales[i] = rows.scales + calls[i]->encoded_y_column / kEncodedBlockValues * rows.scale_stride;
      params.output_scale_stride = rows.scale_stride;
      DSV4RT_RETURN_IF_ERROR(encoded_output_map(params.outputs[i], *calls[i], described.tokens));
      continue;
    }
    const LinearProblem& problem = params.problems[i];
    if (!problem.wide_stores) continue;
    const int box_tokens = fp8 ? kFp8GroupTokens : prefill_box_tokens(plan.item_tokens, problem.float_output);
    DSV4RT_RETURN_IF_ERROR(output_map(params.outputs[i], problem, described.tokens, box_tokens));
  }
  DSV4RT_RETURN_IF_ERROR(map_inputs(params.inputs, inputs, fp8 ? plan.item_tokens : plan.item_tokens / kPrefillBlocks));
  if (fp8) {
    params.last_tokens = tokens_ - (described.token_tiles - 1) * plan.item_tokens;
    DSV4RT_RETURN_IF_ERROR(map_inputs(params.last_inputs, inputs, params.last_tokens));
  }
  params.input_scales = described.input_scales;
  params.input_scale_stride = described.input_scale_stride;
  params.tokens = described.tokens;
  params.first_item = described.first_item;
  params.token_tiles = described.token_tiles;
  params.items = described.items;
  params.segments = described.segments;
  params.stages = plan.stages;
  params.input_offset = plan.input_offset;
  params.stage_bytes = plan.stage_bytes;
  return fp8 ? launch_fp8(device_, params, plan, stream_) : launch_prefill(device_, params, plan, stream_);
}

Status LinearLauncher::run_each(std::span<const LinearCall* const> calls) {
  std::array<const LinearCall*, kMaxProblems> all{};
  std::ranges::copy(calls, all.begin());
  for (const LinearCall* call : std::span(all).first(calls.size())) {
    DSV4RT_RETURN_IF_ERROR(add(*call));
    DSV4RT_RETURN_IF_ERROR(flush());
  }
  return {};
}

Status LinearLauncher::run_gemv(std::span<const LinearCall*> calls, const LinearPlan& plan, const InputNorm& norm) {
  LinearParams params{};
  describe_problems(params, calls, tokens_, plan.item_tokens, plan.item_row_tiles);
  set_rows(params, calls);
  params.norm = norm;
  params.ring_bytes = plan.ring_bytes;
  return launch_gemv(device_, params, plan, stream_);
}

Result<bool> LinearLauncher::run_normed(const RmsNormParams& norm, std::span<const LinearCall> calls) {
  if (calls.empty() || calls.size() > kMaxPrefillProblems || !rounds_behind_norm(norm)) return false;
  if (tokens_ > most_norm_tokens()) {
    for (const LinearCall& call : calls) {
      if (!shape_of(call).rounds || multiplies_codes(call) != multiplies_codes(calls[0])) return false;
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
  // FP8 and BF16 weights of wide inputs may differ in their segments.
  const LinearShape first = shape_of(calls[0]);
  for (const LinearCall& call : calls) {
    const LinearShape shape = shape_of(call);
    if (!first.tiles || !shape.tiles || !may_share_launch(first, shape, tokens_)) return false;
  }
  const Result<LinearPlan> planned = plan(all, true);
  if (!planned.ok())
    return planned.status().code() == StatusCode::kUnsupported ? Result<bool>(false) : planned.status();
  DSV4RT_RETURN_IF_ERROR(run_gemv(all, *planned, {.weight = norm.weight, .eps = norm.eps}));
  return true;
}

// Codes of a call's x, or of what norm makes, or those that the call comes with; sets their scales.
Result<LinearLauncher::Input> LinearLauncher::encode(LinearParams& params, const LinearCall& call,
                                                     const RmsNormParams* norm, const LinearPlan& plan) {
  EncodedRows rows = call.encoded.value_or(EncodedRows{});
  if (!call.encoded) {
    rows.width = call.weight->in_features();
    rows.scale_stride = round_up(tokens_, plan.item_tokens);
    const std::int64_t code_bytes = tokens_ * rows.width;
    const std::int64_t scales = rows.width / kEncodedBlockValues * rows.scale_stride;
    const std::int64_t bytes = code_bytes + scales * std::int64_t{sizeof(float)};
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch_.take(static_cast<std::size_t>(bytes), "linear"));
    rows.codes = reinterpret_cast<std::uint8_t*>(memory);
    rows.scales = reinterpret_cast<float*>(memory + code_bytes);
    DSV4RT_RETURN_IF_ERROR(norm != nullptr
                               ? encoded_rms_norm(*norm, rows, stream_)
                               : encode_input({.x = call.x, .x_stride = call.x_stride, .to = rows, .tokens = tokens_},
                                              plan.rounding_blocks, stream_));
  }
  params.input_scales = rows.scales;
  params.input_scale_stride = rows.scale_stride;
  return Input{.data = rows.codes, .value_bytes = 1, .values = rows.width, .stride = rows.width};
}

// A call's x, or what norm makes, rounded.
Result<LinearLauncher::Input> LinearLauncher::round(const LinearCall& call, const RmsNormParams* norm,
                                                    const LinearPlan& plan) {
  const std::int64_t width = call.weight->in_features();
  const std::int64_t bytes = tokens_ * width * std::int64_t{sizeof(bf16)};
  DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch_.take(static_cast<std::size_t>(bytes), "linear"));
  auto* const rows = reinterpret_cast<bf16*>(memory);
  if (norm != nullptr) {
    RmsNormParams rounding = *norm;
    rounding.y = rows;
    DSV4RT_RETURN_IF_ERROR(rounded_rms_norm(rounding, stream_));
  } else {
    DSV4RT_RETURN_IF_ERROR(round_input({.x = call.x,
                                        .x_stride = call.x_stride,
                                        .rounded = rows,
                                        .tokens = tokens_,
                                        .inputs = static_cast<std::int32_t>(width)},
                                       plan.rounding_blocks, stream_));
  }
  return Input{.data = rows, .value_bytes = sizeof(bf16), .values = width, .stride = width};
}

// Tells the problems their inputs: what is rounded, if anything, then the others. norm, if any, makes what is rounded.
Result<LinearLauncher::Inputs> LinearLauncher::set_inputs(LinearParams& params,
                                                          std::span<const LinearCall* const> calls,
                                                          const LinearCall* rounded, const RmsNormParams* norm,
                                                          const LinearPlan& plan) {
  Inputs inputs;
  if (rounded != nullptr) {
    DSV4RT_ASSIGN_OR_RETURN(
        inputs.of[0], multiplies_codes(*rounded) ? encode(params, *rounded, norm, plan) : round(*rounded, norm, plan));
    inputs.count = 1;
  }
  const LinearCall* last = nullptr;  // the call whose x is the last input
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const LinearCall& call = *calls[i];
    if (rounds(call)) {
      params.problems[i].input = 0;
      if (call.encoded) {
        params.problems[i].input_block = static_cast<std::int16_t>(call.encoded_column / kEncodedBlockValues);
      }
      continue;
    }
    if (last == nullptr || !same_input(*last, call)) {
      if (inputs.count == kMaxProblems) return Status{StatusCode::kInternal, "linear: more inputs than tensor maps"};
      inputs.of[static_cast<std::size_t>(inputs.count++)] = {
          .data = call.x, .value_bytes = sizeof(bf16), .values = call.weight->in_features(), .stride = call.x_stride};
      last = &call;
    }
    params.problems[i].input = static_cast<std::int16_t>(inputs.count - 1);
  }
  return inputs;
}

// Boxes of one stage, so many tokens each.
Status LinearLauncher::map_inputs(std::span<CUtensorMap> maps, const Inputs& inputs, int box_tokens) const {
  for (std::size_t i = 0; i < static_cast<std::size_t>(inputs.count); ++i) {
    const Input& input = inputs.of[i];
    DSV4RT_RETURN_IF_ERROR(encode_row_map({.data = input.data,
                                           .value_bytes = input.value_bytes,
                                           .columns = input.values,
                                           .rows = tokens_,
                                           .row_bytes = input.stride * input.value_bytes,
                                           .box_columns = kStageBytesOfInput / input.value_bytes,
                                           .box_rows = box_tokens},
                                          maps[i]));
  }
  return {};
}

}  // namespace dsv4rt::cuda
