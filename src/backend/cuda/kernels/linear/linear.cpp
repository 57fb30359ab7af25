#include <algorithm>
#include <string>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/common/launch_check.h"
#include "backend/cuda/kernels/linear/cublaslt/library_linear.h"
#include "backend/cuda/kernels/linear/linear_launch.h"
#include "backend/cuda/kernels/linear/packing/packed_linear.h"
#include "backend/cuda/kernels/linear/portable/portable_instantiate.cuh"
#include "base/try.h"
#include "layout/codec_e8m0.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kBlockInputs = 128;  // inputs that share an activation scale

// A warp per block of 128 inputs, 4 values a lane.
__global__ __launch_bounds__(256) void round_activation_kernel(const ActivationRoundingParams p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = (p.inputs + kBlockInputs - 1) / kBlockInputs;
  const std::int64_t item = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  if (item >= std::int64_t{p.tokens} * blocks) return;
  const std::int64_t token = item / blocks;
  const int first = static_cast<int>(item % blocks) * kBlockInputs + lane * 4;
  float values[4];
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = first + i < p.inputs ? to_float(p.x[token * p.x_stride + first + i]) : 0.0F;
    const float magnitude = fabsf(values[i]);
    if (magnitude <= 3.4028235e38F) amax = fmaxf(amax, magnitude);  // finite_amax: NaN and infinity do not count
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, offset));
  const float scale = decode_e8m0(e8m0_scale_for_e4m3(amax));
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < p.inputs) p.rounded[token * p.inputs + first + i] = to_bf16(round_e4m3(values[i] / scale) * scale);
  }
}

Status round_activation(const ActivationRoundingParams& p, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const std::int64_t items = std::int64_t{p.tokens} * ((p.inputs + kBlockInputs - 1) / kBlockInputs);
  const auto grid = static_cast<unsigned>((items * 32 + kThreads - 1) / kThreads);
  round_activation_kernel<<<grid, kThreads, 0, stream>>>(p);
  return DSV4RT_CUDA_STATUS(cudaGetLastError());
}

Status launch(const CudaPackedLinear& weight, const LinearCall& call, const bf16* x, std::int64_t x_stride,
              std::int32_t tokens, cudaStream_t stream) {
  const LinearKernelParams p{.x = x,
                             .x_stride = x_stride,
                             .codes = weight.codes(),
                             .scales = weight.scales(),
                             .global_scale = weight.global_scale(),
                             .y = call.y,
                             .y_stride = call.y_stride,
                             .tokens = tokens,
                             .inputs = static_cast<std::int32_t>(weight.in_features()),
                             .padded_inputs = static_cast<std::int32_t>(weight.padded_inputs()),
                             .outputs = static_cast<std::int32_t>(weight.out_features())};
  switch (weight.encoding()) {
    case WeightEncoding::kBf16:
      return launch_linear_bf16(p, call.output, stream);
    case WeightEncoding::kFp8Block128:
      return launch_linear_fp8(p, call.output, stream);
    case WeightEncoding::kNvfp4:
      return launch_linear_nvfp4(p, call.output, stream);
  }
  return {StatusCode::kInternal, "linear: unknown weight encoding"};
}

// Runs calls over lane-packed weights one by one.
class LaneLauncher {
 public:
  LaneLauncher(std::int32_t tokens, Scratch& scratch, cudaStream_t stream)
      : tokens_(tokens), scratch_(scratch), stream_(stream) {}

  Status run(const LinearCall& call) {
    const auto& weight = static_cast<const CudaPackedLinear&>(*call.weight);
    const std::int64_t inputs = weight.in_features();
    if (inputs % 2 != 0 || call.x_stride % 2 != 0) {
      return {StatusCode::kUnsupported, "linear: " + std::to_string(inputs) + " inputs with stride " +
                                            std::to_string(call.x_stride) + "; even numbers are accepted"};
    }
    if (weight.activation() == ActivationRounding::kNone) {
      return launch(weight, call, call.x, call.x_stride, tokens_, stream_);
    }
    if (rounded_from_ != call.x || rounded_inputs_ != inputs) {
      const auto bytes = static_cast<std::size_t>(tokens_) * static_cast<std::size_t>(inputs) * sizeof(bf16);
      DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch_.take(bytes, "linear"));
      rounded_ = reinterpret_cast<bf16*>(memory);
      DSV4RT_RETURN_IF_ERROR(round_activation({.x = call.x,
                                               .x_stride = call.x_stride,
                                               .rounded = rounded_,
                                               .tokens = tokens_,
                                               .inputs = static_cast<std::int32_t>(inputs)},
                                              stream_));
      rounded_from_ = call.x;
      rounded_inputs_ = inputs;
    }
    return launch(weight, call, rounded_, inputs, tokens_, stream_);
  }

 private:
  std::int32_t tokens_;
  Scratch& scratch_;
  cudaStream_t stream_;
  const bf16* rounded_from_ = nullptr;  // the x whose rounded copy lies in scratch
  std::int64_t rounded_inputs_ = 0;
  bf16* rounded_ = nullptr;
};

Status check_call(const LinearCall& call) {
  if (call.x == nullptr || call.weight == nullptr || call.y == nullptr) {
    return {StatusCode::kInvalidArgument, "linear: x, weight or y is null"};
  }
  DSV4RT_RETURN_IF_ERROR(require(call.x_stride >= call.weight->in_features(), "linear", "x_stride", call.x_stride,
                                 "the weight's in_features and more"));
  return require(call.y_stride >= call.weight->out_features(), "linear", "y_stride", call.y_stride,
                 "the weight's out_features and more");
}

}  // namespace

Status CudaOps::linear(std::int32_t tokens, std::span<const LinearCall> calls) {
  DSV4RT_RETURN_IF_ERROR(require(tokens >= 0, "linear", "tokens", tokens, "0 and more"));
  for (const LinearCall& call : calls) DSV4RT_RETURN_IF_ERROR(check_call(call));
  if (tokens == 0) return {};
  const auto exact = [&](const LinearCall& call) { return library_ == nullptr || !library_->takes(tokens, call); };
  const auto in_tiles = [](const LinearCall& call) {
    return static_cast<const CudaPackedLinear&>(*call.weight).in_tiles();
  };
  // All use the scratch: tiles run first, lanes and cuBLASLt in stream order after them.
  LinearLauncher tiles(tokens, scratch_, stream_);
  for (const LinearCall& call : calls) {
    if (exact(call) && in_tiles(call)) DSV4RT_RETURN_IF_ERROR(tiles.add(call));
  }
  DSV4RT_RETURN_IF_ERROR(tiles.flush());
  LaneLauncher lanes(tokens, scratch_, stream_);
  for (const LinearCall& call : calls) {
    if (exact(call) && !in_tiles(call)) DSV4RT_RETURN_IF_ERROR(lanes.run(call));
  }
  return library_ == nullptr ? Status{} : library_->run(tokens, calls, scratch_, stream_);
}

Status CudaOps::normed_linear(const RmsNormParams& norm, std::span<const LinearCall> calls) {
  for (const LinearCall& call : calls) DSV4RT_RETURN_IF_ERROR(check_call(call));
  const bool together = norm.tokens > 0 && std::all_of(calls.begin(), calls.end(), [&](const LinearCall& call) {
                          const auto& weight = static_cast<const CudaPackedLinear&>(*call.weight);
                          return weight.in_tiles() && weight.in_features() == norm.width && call.x == norm.y &&
                                 (library_ == nullptr || !library_->takes(norm.tokens, call));
                        });
  if (together) {
    DSV4RT_ASSIGN_OR_RETURN(const bool done, LinearLauncher(norm.tokens, scratch_, stream_).run_normed(norm, calls));
    if (done) return {};
  }
  return Ops::normed_linear(norm, calls);
}

}  // namespace dsv4rt::cuda
