#include <string>

#include "backend/cuda/cuda_ops.h"
#include "backend/cuda/kernels/linear/instantiate.cuh"
#include "backend/cuda/kernels/linear/packed_linear.h"
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
    case WeightEncoding::kBf16: return launch_linear_bf16(p, call.output, stream);
    case WeightEncoding::kFp8Block128: return launch_linear_fp8(p, call.output, stream);
    case WeightEncoding::kNvfp4: return launch_linear_nvfp4(p, call.output, stream);
  }
  return {StatusCode::kInternal, "linear: unknown weight encoding"};
}

}  // namespace

Status CudaOps::linear(std::int32_t tokens, std::span<const LinearCall> calls) {
  const bf16* rounded_from = nullptr;  // the x whose rounded copy lies in scratch
  std::int64_t rounded_inputs = 0;
  bf16* rounded = nullptr;
  for (const LinearCall& call : calls) {
    const auto& weight = static_cast<const CudaPackedLinear&>(*call.weight);
    const std::int64_t inputs = weight.in_features();
    if (inputs % 2 != 0 || call.x_stride % 2 != 0) {
      return {StatusCode::kUnsupported, "linear: " + std::to_string(inputs) + " inputs with stride " +
                                            std::to_string(call.x_stride) + "; even numbers are accepted"};
    }
    if (weight.activation() == ActivationRounding::kNone) {
      DSV4RT_RETURN_IF_ERROR(launch(weight, call, call.x, call.x_stride, tokens, stream_));
      continue;
    }
    if (rounded_from != call.x || rounded_inputs != inputs) {
      const auto bytes = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(inputs) * sizeof(bf16);
      DSV4RT_ASSIGN_OR_RETURN(std::byte * memory, scratch_.take(bytes, "linear"));
      rounded = reinterpret_cast<bf16*>(memory);
      DSV4RT_RETURN_IF_ERROR(round_activation({.x = call.x,
                                               .x_stride = call.x_stride,
                                               .rounded = rounded,
                                               .tokens = tokens,
                                               .inputs = static_cast<std::int32_t>(inputs)},
                                              stream_));
      rounded_from = call.x;
      rounded_inputs = inputs;
    }
    DSV4RT_RETURN_IF_ERROR(launch(weight, call, rounded, inputs, tokens, stream_));
  }
  return {};
}

}  // namespace dsv4rt::cuda
