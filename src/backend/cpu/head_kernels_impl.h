// Kernels over single heads without fused operations: the same bytes at every instruction-set level.
#pragma once

#include "backend/cpu/machine_lanes.h"

namespace dsv4rt::cpu {

template <class Machine>
struct HeadKernelsOf : MachineLanes<Machine> {
  using Base = MachineLanes<Machine>;
  using Base::broadcast;
  using Base::kLanes;
  using Base::load;
  using Base::round_bf16;
  using Base::store;
  using typename Base::Float;
  using typename Base::Int;

  using typename Base::Bits16;

  [[gnu::always_inline]] static Float load_bf16(const bf16* from) {
    Bits16 raw;
    std::memcpy(&raw, from, sizeof(raw));
    return (Float)(__builtin_convertvector(raw, Int) << 16);
  }
  [[gnu::always_inline]] static void store_bf16(bf16* to, Float rounded) {
    const Bits16 raw = __builtin_convertvector(((Int)rounded >> 16) & 0xffff, Bits16);
    std::memcpy(static_cast<void*>(to), &raw, sizeof(raw));
  }

  // result[lane] = value[from[lane]].
  [[gnu::always_inline]] static Float permuted(Float value, Int from) {
#if defined(__clang__)
    Float result;
    for (int lane = 0; lane < kLanes; ++lane) result[lane] = value[from[lane]];
    return result;
#else
    return __builtin_shuffle(value, from);
#endif
  }

  static void normalize_head(bf16* head, float eps) {
    constexpr int kParts = kHeadLanes / kLanes;
    Float sum[kParts] = {};
    for (int i = 0; i < kHeadDim; i += kHeadLanes) {
      for (int part = 0; part < kParts; ++part) {
        const Float value = load_bf16(head + i + part * kLanes);
        sum[part] += round_bf16(value * value);
      }
    }
    float lanes[kHeadLanes];
    std::memcpy(lanes, sum, sizeof(lanes));
    for (int width = kHeadLanes / 2; width > 0; width /= 2) {
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    }
    const Float mean = round_bf16(broadcast(lanes[0] / static_cast<float>(kHeadDim)));
    const float shifted = round_bf16(mean + eps)[0];
    const Float scale = round_bf16(broadcast(1.0f / __builtin_sqrtf(shifted)));
    for (int i = 0; i < kHeadDim; i += kLanes) store_bf16(head + i, round_bf16(load_bf16(head + i) * scale));
  }

  static void hadamard_bf16(float* values) {
    constexpr int kVectors = kIndexHeadDim / kLanes;
    constexpr float kScale = 0x1.6a09e6p-4f;  // 128^-0.5
    Float v[kVectors];
    for (int i = 0; i < kVectors; ++i) v[i] = load(values + i * kLanes);
    for (int stride = 1; stride < kLanes; stride *= 2) {
      Int partner;
      Int negative;  // the sign bit where the lane holds a - b
      for (int lane = 0; lane < kLanes; ++lane) {
        partner[lane] = lane ^ stride;
        negative[lane] = (lane & stride) != 0 ? static_cast<std::int32_t>(0x80000000u) : 0;
      }
      for (int i = 0; i < kVectors; ++i) v[i] = permuted(v[i], partner) + (Float)((Int)v[i] ^ negative);
    }
    for (int stride = 1; stride < kVectors; stride *= 2) {
      for (int i = 0; i < kVectors; ++i) {
        if ((i & stride) != 0) continue;
        const Float a = v[i];
        const Float b = v[i + stride];
        v[i] = a + b;
        v[i + stride] = a - b;
      }
    }
    for (int i = 0; i < kVectors; ++i) store(values + i * kLanes, round_bf16(v[i] * kScale));
  }

  // Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 with ties to the even code: adding and subtracting 2^22 times the
  // power of two at or below the magnitude rounds to that binade's spacing. NaN becomes +0.
  [[gnu::always_inline]] static Float round_e2m1(Float value) {
    const Int sign = (Int)value & static_cast<std::int32_t>(0x80000000u);
    const Float magnitude = (Float)((Int)value & 0x7fffffff);
    const Float clamped = magnitude < 6.0f ? magnitude : broadcast(6.0f);
    const Int binade = (Int)clamped & 0x7f800000;
    const Float grid = (Float)((binade < 0x3f800000 ? Int{} + 0x3f800000 : binade) + (22 << 23));
    const Float rounded = (clamped + grid) - grid;
    return value != value ? Float{} : (Float)((Int)rounded | sign);
  }

  // decode_e8m0(e8m0_scale_for_e2m1(amax)): 2^ceil(log2(max(amax, 6 * 2^-126) / 6)), a normal number. Written
  // out because an inline function shared with other translation units would be compiled for this one's set.
  [[gnu::always_inline]] static float mxfp4_scale(float amax) {
    constexpr float kFloor = 6.0f * 0x1p-126f;
    const auto bits = __builtin_bit_cast(std::uint32_t, (amax > kFloor ? amax : kFloor) / 6.0f);
    return __builtin_bit_cast(float, (bits & 0x7f800000u) + ((bits & 0x7fffffu) != 0 ? 0x00800000u : 0u));
  }

  static void round_mxfp4(float* values) {
    for (int group = 0; group < kIndexHeadDim; group += 32) {
      Int largest{};  // magnitudes order like their bits; infinities and NaN do not count
      for (int i = group; i < group + 32; i += kLanes) {
        const Int magnitude = (Int)load(values + i) & 0x7fffffff;
        const Int finite = magnitude < 0x7f800000 ? magnitude : Int{};
        largest = finite > largest ? finite : largest;
      }
      std::int32_t amax = 0;
      for (int lane = 0; lane < kLanes; ++lane) amax = largest[lane] > amax ? largest[lane] : amax;
      const float scale = mxfp4_scale(__builtin_bit_cast(float, amax));
      // A power of two from 2^-126 to 2^126: dividing by it is multiplying by its reciprocal, exactly.
      const float reciprocal = 1.0f / scale;
      for (int i = group; i < group + 32; i += kLanes) {
        store(values + i, round_e2m1(load(values + i) * reciprocal) * scale);
      }
    }
  }
};

}  // namespace dsv4rt::cpu
