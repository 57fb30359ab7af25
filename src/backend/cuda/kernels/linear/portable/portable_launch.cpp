#include "backend/cuda/kernels/linear/portable/portable_launch.h"

#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/portable/portable_params.h"
#include "backend/cuda/kernels/linear/shared/round_input.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

Status launch(const CudaPackedLinear& weight, const PortableParams& p, OutputType output, int item_tokens,
              cudaStream_t stream) {
  switch (weight.encoding()) {
    case WeightEncoding::kBf16:
      return launch_portable_bf16(p, output, item_tokens, stream);
    case WeightEncoding::kFp8Block128:
      return launch_portable_fp8(p, output, item_tokens, stream);
    case WeightEncoding::kNvfp4:
      return launch_portable_nvfp4(p, output, item_tokens, stream);
  }
  return {StatusCode::kInternal, "linear: unknown weight encoding"};
}

}  // namespace

Status PortableLauncher::run(const LinearCall& call, const LinearPlan& plan) {
  const auto& weight = static_cast<const CudaPackedLinear&>(*call.weight);
  const std::int64_t inputs = weight.in_features();
  PortableParams p{.x = call.x,
                   .x_stride = call.x_stride,
                   .codes = weight.codes(),
                   .scales = weight.scales(),
                   .global_scale = weight.global_scale(),
                   .y = call.y,
                   .y_stride = call.y_stride,
                   .tokens = tokens_,
                   .inputs = static_cast<std::int32_t>(inputs),
                   .padded_inputs = static_cast<std::int32_t>(weight.padded_inputs()),
                   .outputs = static_cast<std::int32_t>(weight.out_features())};
  if (weight.activation() == ActivationRounding::kNone) {
    return launch(weight, p, call.output, plan.item_tokens, stream_);
  }
  if (rounded_from_ != call.x || rounded_inputs_ != inputs) {
    const auto bytes = static_cast<std::size_t>(tokens_) * static_cast<std::size_t>(inputs) * sizeof(bf16);
    DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch_.take(bytes, "linear"));
    rounded_ = reinterpret_cast<bf16*>(memory);
    DSV4RT_RETURN_IF_ERROR(round_input({.x = call.x,
                                        .x_stride = call.x_stride,
                                        .rounded = rounded_,
                                        .tokens = tokens_,
                                        .inputs = static_cast<std::int32_t>(inputs)},
                                       plan.rounding_blocks, stream_));
    rounded_from_ = call.x;
    rounded_inputs_ = inputs;
  }
  p.x = rounded_;
  p.x_stride = inputs;
  return launch(weight, p, call.output, plan.item_tokens, stream_);
}

}  // namespace dsv4rt::cuda
