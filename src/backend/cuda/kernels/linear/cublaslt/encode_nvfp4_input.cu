#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/cublaslt/encode_nvfp4_input.h"
#include "backend/cuda/kernels/linear/packing/nvfp4_scale_tiles.h"
#include "layout/codec_nvfp4.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kThreads = 256;

// A thread per scale, padding included; a tile's four groups of a row lie in four neighbouring threads.
__global__ __launch_bounds__(kThreads) void encode_nvfp4_input_kernel(const EncodeNvfp4InputParams p) {
  allow_dependents();
  wait_for_predecessors();
  const int groups = p.inputs / kNvfp4GroupValues;
  const std::int64_t padded_groups = round_up<std::int64_t>(groups, kScaleTileGroups);
  const std::int64_t item = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t token = item / padded_groups;
  const std::int64_t group = item % padded_groups;
  if (token >= round_up<std::int64_t>(p.tokens, kScaleTileRows)) return;
  std::uint8_t scale = 0;
  if (token < p.tokens && group < groups) {
    const auto* from = reinterpret_cast<const uint4*>(p.x + token * p.x_stride + group * kNvfp4GroupValues);
    const uint4 packed[2] = {from[0], from[1]};
    float values[kNvfp4GroupValues];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t pairs[4] = {packed[i].x, packed[i].y, packed[i].z, packed[i].w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[8 * i + 2 * j] = __uint_as_float(pairs[j] << 16);
        values[8 * i + 2 * j + 1] = __uint_as_float(pairs[j] & 0xffff0000U);
      }
    }
    alignas(8) std::byte codes[kNvfp4GroupBytes];
    scale = encode_nvfp4_group(values, codes, p.global_scale);
    *reinterpret_cast<uint2*>(p.codes + (token * groups + group) * kNvfp4GroupBytes) =
        *reinterpret_cast<const uint2*>(codes);
  }
  p.scales[nvfp4_scale_offset(token, group, groups)] = scale;
}

}  // namespace

Status encode_nvfp4_input(const EncodeNvfp4InputParams& p, cudaStream_t stream) {
  const std::int64_t items = nvfp4_scale_bytes(p.tokens, p.inputs / kNvfp4GroupValues);
  const auto grid = static_cast<unsigned>(ceil_div<std::int64_t>(items, kThreads));
  return launch_pdl(encode_nvfp4_input_kernel, {.grid = dim3(grid), .threads = kThreads}, stream, p);
}

}  // namespace dsv4rt::cuda
