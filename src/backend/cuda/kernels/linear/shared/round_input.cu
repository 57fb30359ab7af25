#include <cstdint>

#include "backend/cuda/kernels/common/dependent_launch.cuh"
#include "backend/cuda/kernels/common/launch_pdl.h"
#include "backend/cuda/kernels/linear/shared/linear_params.h"
#include "backend/cuda/kernels/linear/shared/round_input.h"
#include "backend/cuda/kernels/linear/shared/round_values.cuh"
#include "base/arithmetic.h"

namespace dsv4rt::cuda {
namespace {

constexpr int kLaneInputs = 8;  // inputs of an item that a thread takes

// Inputs of a row from `first` on as they lie in a uint4; beyond the row's end zeros, which change no maximum.
__device__ __forceinline__ uint4 load_inputs(const bf16* row, int first, int inputs) {
  const auto bits = [&](int i) { return first + i < inputs ? std::uint32_t{row[first + i].bits} : 0U; };
  return make_uint4(bits(0) | bits(1) << 16U, bits(2) | bits(3) << 16U, bits(4) | bits(5) << 16U,
                    bits(6) | bits(7) << 16U);
}
__device__ __forceinline__ void store_inputs(bf16* row, int first, int inputs, uint4 values) {
  const std::uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
  for (int i = 0; i < kLaneInputs; ++i) {
    if (first + i < inputs) row[first + i].bits = static_cast<std::uint16_t>(pairs[i / 2] >> (16 * (i % 2)));
  }
}

// kWide: whole blocks of 16-byte aligned rows. kItems: most items that a thread has. `blocks`: p.blocks.
template <bool kWide, int kItems>
__global__ __launch_bounds__(kRoundingThreads) void round_input_kernel(const RoundInputParams p,
                                                                       const FixedDivisor blocks) {
  allow_dependents();
  const auto [first, lane, members] = RoundingPlace{};
  const auto items = static_cast<std::uint32_t>(p.tokens * p.blocks);
  const std::uint32_t step = gridDim.x * kRoundingBlocks;
  const bf16* rows[kItems];
  std::int32_t inputs[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::uint32_t item = first + i * step;
    if (item >= items) break;
    rows[i] = p.x + blocks.quotient(item) * p.x_stride;
    inputs[i] = static_cast<std::int32_t>(blocks.remainder(item)) * kScaleBlockInputs + lane * kLaneInputs;
    if constexpr (kWide) rows[i] += inputs[i];
    have_ready(rows[i]);
  }
  wait_for_predecessors();
  uint4 values[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (first + i * step >= items) break;
    if constexpr (kWide) {
      values[i] = *reinterpret_cast<const uint4*>(rows[i]);
    } else {
      values[i] = load_inputs(rows[i], inputs[i], p.inputs);
    }
  }
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const std::uint32_t item = first + i * step;
    if (item >= items) break;  // whole half-warps
    const uint4 rounded = round_block(values[i], members);
    if constexpr (kWide) {
      *reinterpret_cast<uint4*>(p.rounded + std::int64_t{item} * kScaleBlockInputs + lane * kLaneInputs) = rounded;
    } else {
      store_inputs(p.rounded + std::int64_t{blocks.quotient(item)} * p.inputs, inputs[i], p.inputs, rounded);
    }
  }
}

}  // namespace

Status round_input(RoundInputParams p, int most_blocks, cudaStream_t stream) {
  p.blocks = ceil_div(p.inputs, kScaleBlockInputs);
  DSV4RT_ASSIGN_OR_RETURN(const std::int64_t items, rounding_items(p.tokens, p.blocks));
  const std::int64_t grid = rounding_grid(items, most_blocks);
  const auto low = reinterpret_cast<std::uintptr_t>(p.x) | reinterpret_cast<std::uintptr_t>(p.rounded);
  const bool wide = p.inputs % kScaleBlockInputs == 0 && p.x_stride % kLaneInputs == 0 && low % sizeof(uint4) == 0;
  const bool one = grid * kRoundingBlocks >= items;
  const auto kernel = wide ? (one ? round_input_kernel<true, 1> : round_input_kernel<true, kMostRoundingItems>)
                           : round_input_kernel<false, kMostRoundingItems>;
  return launch_pdl(kernel, {.grid = dim3(static_cast<unsigned>(grid)), .threads = kRoundingThreads}, stream, p,
                    FixedDivisor(p.blocks));
}

}  // namespace dsv4rt::cuda
