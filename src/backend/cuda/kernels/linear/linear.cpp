#include <algorithm>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/linear/cublaslt/cublaslt_linear.h"
#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/portable/portable_launch.h"
#include "base/try.h"

namespace dsv4rt::cuda {
namespace {

Status check_encoded(std::int32_t tokens, const LinearCall& call) {
  if (!takes_encoded_rows(tokens, static_cast<const CudaPackedLinear&>(*call.weight))) {
    return {StatusCode::kInvalidArgument, "linear: encoded inputs, for a step of " + std::to_string(tokens) +
                                              " tokens or a weight for which takes_encoded_rows() is false"};
  }
  return check_encoded_rows(*call.encoded, call.encoded_column, call.weight->in_features(), tokens, "linear",
                            "encoded");
}

// Kernels that read values leave none, and codes are of outputs as BF16.
Status check_encoded_y(std::int32_t tokens, const LinearCall& call) {
  if (!call.encoded || call.output != OutputType::kBf16) {
    return {StatusCode::kInvalidArgument,
            "linear: encoded_y is for bf16 outputs of calls whose inputs are encoded (encodes_outputs())"};
  }
  return check_encoded_rows(*call.encoded_y, call.encoded_y_column, call.weight->out_features(), tokens, "linear",
                            "encoded_y");
}

Status check_call(std::int32_t tokens, const LinearCall& call) {
  if ((call.x == nullptr && !call.encoded) || call.weight == nullptr || (call.y == nullptr && !call.encoded_y)) {
    return {StatusCode::kInvalidArgument, "linear: x, weight or y is null"};
  }
  if (call.encoded) {
    DSV4RT_RETURN_IF_ERROR(check_encoded(tokens, call));
  } else {
    DSV4RT_RETURN_IF_ERROR(require(call.x_stride >= call.weight->in_features(), "linear", "x_stride", call.x_stride,
                                   "the weight's in_features and more"));
  }
  if (call.encoded_y) return check_encoded_y(tokens, call);
  return require(call.y_stride >= call.weight->out_features(), "linear", "y_stride", call.y_stride,
                 "the weight's out_features and more");
}

}  // namespace

Status CudaOps::linear(std::int32_t tokens, std::span<const LinearCall> calls) {
  DSV4RT_RETURN_IF_ERROR(require(tokens >= 0, "linear", "tokens", tokens, "0 and more"));
  for (const LinearCall& call : calls) DSV4RT_RETURN_IF_ERROR(check_call(tokens, call));
  if (tokens == 0) return {};
  // cuBLASLt takes weights that lie in lanes alone (CublasLtLinear::takes).
  const auto exact = [&](const LinearCall& call) { return library_ == nullptr || !library_->takes(tokens, call); };
  // All use the scratch: tiles run first, lanes and cuBLASLt in stream order after them.
  LinearLauncher tiles(device_, tokens, scratch_, stream_);
  for (const LinearCall& call : calls) {
    if (shape_of(call).tiles) DSV4RT_RETURN_IF_ERROR(tiles.add(call));
  }
  DSV4RT_RETURN_IF_ERROR(tiles.flush());
  PortableLauncher lanes(tokens, scratch_, stream_);
  for (const LinearCall& call : calls) {
    const LinearShape shape = shape_of(call);
    if (shape.tiles || !exact(call)) continue;
    DSV4RT_RETURN_IF_ERROR(check_input(shape, call.x, call.x_stride));
    DSV4RT_ASSIGN_OR_RETURN(const LinearPlan plan,
                            plan_linear({.facts = device_.facts()}, tokens, std::span(&shape, 1)));
    DSV4RT_RETURN_IF_ERROR(lanes.run(call, plan));
  }
  return library_ == nullptr ? Status{} : library_->run(tokens, calls, scratch_, stream_);
}

Result<bool> CudaOps::encodes_outputs(std::int32_t tokens, std::span<const LinearCall> calls) {
  for (const LinearCall& call : calls) DSV4RT_RETURN_IF_ERROR(check_call(tokens, call));
  if (tokens < least_encoded_tokens()) return false;
  return LinearLauncher(device_, tokens, scratch_, stream_).encodes_outputs(calls);
}

bool CudaOps::takes_encoded_rows(std::int32_t tokens, const PackedLinear& weight) const {
  return cuda::takes_encoded_rows(tokens, static_cast<const CudaPackedLinear&>(weight));
}

Status CudaOps::normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) {
  for (const LinearCall& call : calls) {
    if (call.encoded || call.encoded_y) {
      return {StatusCode::kInvalidArgument, "normed_linear: encoded inputs or outputs; accepted: values"};
    }
    DSV4RT_RETURN_IF_ERROR(check_call(norm.tokens, call));
  }
  const bool together = norm.tokens > 0 && std::all_of(calls.begin(), calls.end(), [&](const LinearCall& call) {
                          const auto& weight = static_cast<const CudaPackedLinear&>(*call.weight);
                          return weight.wgmma_packed() && weight.in_features() == norm.width && call.x == norm.y;
                        });
  if (together) {
    LinearLauncher launcher(device_, norm.tokens, scratch_, stream_);
    DSV4RT_ASSIGN_OR_RETURN(const bool done, launcher.run_normed(norm, calls));
    if (done) return {};
  }
  DSV4RT_RETURN_IF_ERROR(rms_norm(norm));
  return linear(norm.tokens, calls);
}

}  // namespace dsv4rt::cuda
