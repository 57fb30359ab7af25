#include "backend/cuda/kernels/linear/tile_launch.h"

#include <algorithm>
#include <string>

#include "backend/cuda/device/cuda_error.h"
#include "backend/cuda/device/tensor_map.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/linear/quantize_input.h"
#include "backend/cuda/kernels/linear/tile_variant.h"
#include "base/arithmetic.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kUnitBytes = 16;  // what copies and wide accesses need as alignment

const CudaPackedLinear& packed(const LinearCall& call) { return static_cast<const CudaPackedLinear&>(*call.weight); }

bool same_input(const LinearCall& a, const LinearCall& b) {
  return a.x == b.x && a.x_stride == b.x_stride && a.weight->in_features() == b.weight->in_features();
}

bool aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % kUnitBytes == 0; }

// More tokens a block read weights less often; a result does not depend on it.
const TileVariant& variant_for(std::int32_t tokens) {
  if (tokens <= 8) return tile_variant<8>();
  if (tokens <= 16) return tile_variant<16>();
  if (tokens <= 32) return tile_variant<32>();
  if (tokens <= 64) return tile_variant<64>();
  return tile_variant<128>();
}

// [T][K] values of `value_bytes`, boxes of one stage.
Status input_map(CUtensorMap& map, const void* data, int value_bytes, std::int64_t inputs, std::int64_t stride,
                 std::int32_t tokens, int box_tokens) {
  return encode_row_map({.data = data,
                         .value_bytes = value_bytes,
                         .columns = inputs,
                         .rows = tokens,
                         .row_bytes = stride * value_bytes,
                         .box_columns = kStageBytesOfInput / value_bytes,
                         .box_rows = box_tokens},
                        map);
}

}  // namespace

Status TileLauncher::add(const LinearCall& call) {
  DSV4RT_RETURN_IF_ERROR(require_supported(call.x_stride % 8 == 0, "linear", "x_stride", call.x_stride,
                                           "multiples of 8 for this weight"));
  DSV4RT_RETURN_IF_ERROR(require_aligned(call.x, kUnitBytes, "linear", "x"));
  const CudaPackedLinear& weight = packed(call);
  const bool quantizes = weight.tile_kind() == TileKind::kFp8;
  const bool other_input = quantizes && quantized_ != nullptr && !same_input(*quantized_, call);
  if (count_ == kMaxTileProblems || other_input ||
      (count_ > 0 && packed(*calls_[0]).segments() != weight.segments())) {
    DSV4RT_RETURN_IF_ERROR(flush());
  }
  if (quantizes && quantized_ == nullptr) quantized_ = &call;
  calls_[static_cast<std::size_t>(count_++)] = &call;
  return {};
}

Status TileLauncher::flush() {
  if (count_ == 0) return {};
  const auto calls = std::span(calls_).first(static_cast<std::size_t>(count_));
  // Longest items first: the tail of the launch is then made of short ones.
  std::stable_sort(calls.begin(), calls.end(), [](const LinearCall* a, const LinearCall* b) {
    const auto stages = [](const LinearCall& call) {
      return call.weight->in_features() / stage_inputs(packed(call).tile_kind());
    };
    return stages(*a) > stages(*b);
  });

  const TileVariant& variant = variant_for(tokens_);
  TileParams params{};
  params.tokens = tokens_;
  params.token_tiles = ceil_div(tokens_, variant.tokens);
  params.segments = packed(*calls[0]).segments();
  params.problem_count = count_;

  int inputs = 0;
  int quantized_input = -1;
  if (quantized_ != nullptr) {
    const std::int64_t width = quantized_->weight->in_features();
    params.input_scale_stride = round_up(tokens_, 8);
    const std::int64_t code_bytes = tokens_ * width;
    const std::int64_t scale_bytes = width / kScaleBlockInputs * params.input_scale_stride * std::int64_t{sizeof(float)};
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory,
                            scratch_.take(static_cast<std::size_t>(code_bytes + scale_bytes), "linear"));
    auto* scales = reinterpret_cast<float*>(memory + code_bytes);
    DSV4RT_RETURN_IF_ERROR(quantize_input({.x = quantized_->x,
                                           .x_stride = quantized_->x_stride,
                                           .codes = reinterpret_cast<std::uint8_t*>(memory),
                                           .scales = scales,
                                           .scale_stride = params.input_scale_stride,
                                           .tokens = tokens_,
                                           .blocks = static_cast<std::int32_t>(width / kScaleBlockInputs)},
                                          stream_));
    params.input_scales = scales;
    quantized_input = inputs++;
    DSV4RT_RETURN_IF_ERROR(input_map(params.inputs[quantized_input], memory, 1, width, width, tokens_, variant.tokens));
  }

  const LinearCall* mapped = nullptr;  // the call whose BF16 input the last map describes
  int weight_bytes = 0;
  for (int i = 0; i < count_; ++i) {
    const LinearCall& call = *calls[static_cast<std::size_t>(i)];
    const CudaPackedLinear& weight = packed(call);
    TileProblem& problem = params.problems[i];
    problem.codes = weight.codes();
    problem.scales = reinterpret_cast<const float*>(weight.scales());
    problem.y = call.y;
    problem.y_stride = call.y_stride;
    problem.row_tiles = static_cast<std::int32_t>(weight.out_features() / kRowTile);
    problem.row_groups = ceil_div(problem.row_tiles, variant.row_tiles);
    problem.scale_blocks = static_cast<std::int32_t>(weight.in_features() / kScaleBlockInputs);
    problem.first_item = params.items;
    problem.kind = weight.tile_kind();
    problem.float_output = call.output == OutputType::kF32;
    problem.wide_stores = aligned(call.y) && call.y_stride % 8 == 0;
    params.items += problem.row_groups * params.token_tiles;
    weight_bytes = std::max(weight_bytes, stage_tile_bytes(problem.kind));
    if (problem.kind == TileKind::kFp8) {
      problem.input = static_cast<std::int16_t>(quantized_input);
      continue;
    }
    if (mapped == nullptr || !same_input(*mapped, call)) {
      if (inputs == kMaxTileProblems) return {StatusCode::kInternal, "linear: more inputs than tensor maps"};
      DSV4RT_RETURN_IF_ERROR(input_map(params.inputs[inputs++], call.x, 2, call.weight->in_features(), call.x_stride,
                                       tokens_, variant.tokens));
      mapped = &call;
    }
    problem.input = static_cast<std::int16_t>(inputs - 1);
  }

  params.input_offset = variant.row_tiles * weight_bytes;
  params.stage_bytes = params.input_offset + variant.input_bytes;
  count_ = 0;
  quantized_ = nullptr;
  return variant.launch(params, stream_);
}

}  // namespace dsv4rt::cuda
