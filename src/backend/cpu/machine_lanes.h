// What the row kernels of every instruction set share: their vectors and BF16 rounding.
//
// `Machine` describes one instruction set and lives in the anonymous namespace of its translation unit, so
// that no code is shared between units that are compiled for different processors.
//
// Machine: kLanes (divides kHeadLanes), Float; load, store, broadcast, multiply_add; e4m3, e2m1, bf16_values
// (loads of kLanes codes as FP32) where kDecodes; transpose_heads; the blocking constants that the kernels name.
#pragma once

#include <cstdint>
#include <cstring>

#include "backend/cpu/exp_lanes.h"
#include "backend/cpu/row_kernels.h"

namespace dsv4rt::cpu {

template <class Machine>
struct MachineLanes {
  static constexpr int kLanes = Machine::kLanes;
  using Float = typename LanesOf<kLanes>::Float;
  using Int = typename LanesOf<kLanes>::Int;
  using Bits = typename LanesOf<kLanes>::Bits;
  using Bits16 [[gnu::vector_size(kLanes * 2)]] = std::uint16_t;

  [[gnu::always_inline]] static Float load(const float* from) { return Machine::load(from); }
  [[gnu::always_inline]] static void store(float* to, Float value) { Machine::store(to, value); }
  [[gnu::always_inline]] static Float broadcast(float value) { return Float{} + value; }

  // Round to nearest even as FP32; NaN becomes quiet.
  [[gnu::always_inline]] static Float round_bf16(Float value) {
    const Bits bits = (Bits)value;
    const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    const Bits quiet = (bits | 0x00400000u) & 0xffff0000u;
    return value != value ? (Float)quiet : (Float)rounded;
  }
};

}  // namespace dsv4rt::cpu
